//! `veilgrad serve`: a planner, and a read-only view of ledgers and reports, in the browser of this machine's user.
//!
//! # Guarantee
//! The server listens on the loopback interface alone, answers only GET requests that name this host and carry the token
//! of this start, and changes no ledger and no report. Requests name files by hashes of listed paths. Pages load nothing
//! from elsewhere.

mod api;
mod guard;
mod listing;
mod place;

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tiny_http::{Header, Request, Response, Server};

use crate::argument::{Common, Serve};
use crate::error::Error;
use crate::output::{print_answer, say};
use crate::train::hooks::interrupts;
use api::Content;
use guard::Guard;
use place::{Place, Slow};

/// Threads that answer. Questions that take long wait for each other in some of them; others must not wait for these.
const THREADS: usize = 16;
/// How long a thread waits for a request before it looks whether to stop.
const PATIENCE: Duration = Duration::from_millis(200);

pub(crate) fn run(arguments: &Serve, common: &Common) -> Result<(), Error> {
    let directory = arguments.directory.as_path();
    if !directory.is_dir() {
        return Err(Error::Usage(format!("{} is not a directory", directory.display())));
    }
    let no_port = |cause: String| Error::Failure(format!("port {}: {cause}", arguments.port));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, arguments.port))
        .map_err(|cause| no_port(cause.to_string()))?;
    // Connections inherit it. Without it the last packet of an answer waits 40 ms for an acknowledgement.
    rustix::net::sockopt::set_tcp_nodelay(&listener, true)
        .map_err(|cause| no_port(cause.to_string()))?;
    let server =
        Server::from_listener(listener, None).map_err(|cause| no_port(cause.to_string()))?;
    let port = server.server_addr().to_ip().map_or(arguments.port, |address| address.port());
    let guard = Guard::new(port).map_err(Error::failure)?;
    let stop = match &common.watch {
        Some(watch) => watch.stop_flag(),
        None => interrupts()?,
    };
    let (url, shown) = (guard.url(), directory.display().to_string());
    let document = json!({ "schema": 1, "url": url, "port": port, "directory": shown });
    print_answer(common.json, &document, &format!("{url}\n"))?;
    if !common.quiet {
        say(&format!(
            "planner, and ledgers and reports of {shown}, read-only; whoever has this address and this machine can open \
             it; Ctrl-C ends it\n"
        ));
    }
    let place = Place { directory, options: common.options(), common, slow: Slow::default() };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(Some(request)) = server.recv_timeout(PATIENCE) {
                        respond(request, &guard, &place);
                    }
                }
            });
        }
    });
    Ok(())
}

fn respond(request: Request, guard: &Guard, place: &Place<'_>) {
    let hosts = request.headers().iter().filter(|header| header.field.equiv("Host"));
    let hosts: Vec<&str> = hosts.map(|header| header.value.as_str()).collect();
    let content = match guard.check(request.method().as_str(), &hosts, request.url()) {
        Ok(rest) => api::answer(rest, place),
        Err(refused) => Content::text(refused.status(), refused.reason()),
    };
    let mut response = Response::from_string(content.text).with_status_code(content.status);
    let headers = [
        ("Content-Type", content.kind),
        ("Content-Security-Policy", &content.policy),
        ("Cache-Control", "no-store"),
        ("Referrer-Policy", "no-referrer"),
        ("X-Content-Type-Options", "nosniff"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
    ];
    for (name, value) in headers {
        if let Ok(header) = Header::from_bytes(name, value) {
            response.add_header(header);
        }
    }
    // A browser that has left is not an error.
    let _ = request.respond(response);
}
