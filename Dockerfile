# The `veilgrad` command in a container, built from this repository:
#   docker build -t veilgrad .
#   docker run --rm -v "$PWD:/data" --user "$(id -u):$(id -g)" veilgrad plan --help
# The ledger is in the mounted directory: a container that is removed must not forget what was spent.
FROM rust:1.95.0-bookworm AS build
WORKDIR /source
COPY . .
# The image has this toolchain: rustup need not fetch the components for development that rust-toolchain.toml lists.
ENV RUSTUP_TOOLCHAIN=1.95.0 CARGO_PROFILE_RELEASE_STRIP=true
RUN cargo install --locked --path crates/veilgrad-cli --root /installed \
    && test "$(stat -c %s /installed/bin/veilgrad)" -lt 25000000

FROM debian:bookworm-slim
RUN useradd --create-home --uid 10001 veilgrad && install -d -o veilgrad -g veilgrad -m 700 /data
COPY --from=build /installed/bin/veilgrad /usr/local/bin/veilgrad
USER veilgrad
WORKDIR /data
ENV VEILGRAD_LEDGER=/data/ledger.db
ENTRYPOINT ["veilgrad"]
CMD ["--help"]
