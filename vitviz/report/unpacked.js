// Numbers out of what `components.gzipped` makes of them.

async function unpacked([type, text]) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const apart = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = globalThis[type].BYTES_PER_ELEMENT;
  if (size === 1) return apart;
  const numbers = new globalThis[type](apart.length / size);
  const together = new Uint8Array(numbers.buffer); // the first bytes of all numbers came first
  apart.forEach((byte, i) => {
    together[(i % numbers.length) * size + Math.floor(i / numbers.length)] = byte;
  });
  return numbers;
}
