// Joins each component with what it imports into one script beside it, X.built.js of X.js, which the
// hosts read: Streamlit takes one source, and a page that is opened from disk imports no neighbour.
//   node build.mjs          writes the scripts
//   node build.mjs --check  fails where one is not what would be written

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const COMPONENTS = ["web/token_map/view", "web/anatomy_map/view", "app/widgets/guess",
  "app/widgets/figure_pictures", "web/notebook/widgets"];

/** A script that gives its exports one name, so that a page can say more behind it.
 * @param {string} entry @param {string} globalName @param {string} [footer] */
async function script(entry, globalName, footer) {
  const { outputFiles } = await build({ entryPoints: [`vitviz/${entry}.js`], bundle: true, minify: true,
    format: "iife", globalName, footer: { js: footer ?? "" }, charset: "utf8", target: "es2022",
    write: false, absWorkingDir: import.meta.dirname });
  return outputFiles[0].text;
}

const stale = [];
for (const entry of [...COMPONENTS, "web/report/page"]) {
  const made = entry === "web/report/page" ? await script(entry, "page")
    : await script(entry, "component", "export default component.default;");
  const file = `${import.meta.dirname}/vitviz/${entry}.built.js`;
  if (!process.argv.includes("--check")) writeFileSync(file, made);
  else if (!existsSync(file) || readFileSync(file, "utf8") !== made) stale.push(file);
}
if (stale.length) {
  console.error(`Not up to date: ${stale.join(", ")}. Run: npm run build`);
  process.exit(1);
}
