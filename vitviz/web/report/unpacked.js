// Unpack the numbers that components.py has compressed.

/** @typedef {[type: "Uint8Array" | "Uint16Array" | "Int32Array" | "Float32Array", text: string]} Column */

/** @param {Column} column */
export async function unpacked([type, text]) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const apart = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = globalThis[type].BYTES_PER_ELEMENT;
  if (size === 1) return apart;
  const numbers = new globalThis[type](apart.length / size);
  const together = new Uint8Array(numbers.buffer); // the first bytes of all numbers come first
  apart.forEach((byte, i) => {
    together[(i % numbers.length) * size + Math.floor(i / numbers.length)] = byte;
  });
  return numbers;
}

/** @param {Record<string, Column>} columns */
export async function allUnpacked(columns) {
  const all = Object.entries(columns).map(async ([name, column]) => [name, await unpacked(column)]);
  return Object.fromEntries(await Promise.all(all));
}
