// Writes the value of an expression, over the names of modules and of what is given, as JSON: both are
// read from the standard input. tests/node.py calls it.

import { text } from "node:stream/consumers";

const { expression, modules, given } = JSON.parse(await text(process.stdin));
const exported = await Promise.all(modules.map((module) => import(module)));
const names = Object.entries(Object.assign({}, ...exported, given)).filter(([name]) => name !== "default");
const evaluate = new Function(...names.map(([name]) => name), `return (${expression});`);
console.log(JSON.stringify(evaluate(...names.map(([, value]) => value))));
