// The strings of the components, in the language of their host.

/** @type {Record<string, string>} */
let strings = {}; // translations by English string

/** Use the strings that the host has sent. @param {Record<string, string> | undefined} sent */
export function speak(sent) {
  strings = sent ?? {};
}

/** A string in the language of the host, with values in place of the names in braces.
 * @param {string} english @param {Record<string, unknown>} [values] @returns {string} */
export function tr(english, values = {}) {
  const said = strings[english] ?? english;
  return said.replace(/(?<![_^])\{(\w+)\}/g, (all, name) => (name in values ? String(values[name]) : all));
}
