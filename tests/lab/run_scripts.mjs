// The Python scripts of states: `node run_scripts.mjs FOLDER < states.json > scripts.json`, FOLDER that of the page's modules.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(`${process.argv[2]}/`);
const { pythonScript } = await import(new URL("python_script.js", folder));
const scripts = JSON.parse(readFileSync(0, "utf8")).map(({ state, link }) => pythonScript(state, link ?? null));
process.stdout.write(JSON.stringify(scripts));
