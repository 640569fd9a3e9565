"""The kernels as one script: no module system, no other file, in a worker as in the page."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import marginlens as ml
from lab_kernels import KERNELS, as_json, ask, needs_node
from marginlens.core.wasm import FILE
from marginlens.lab.assemble import bundle


def test_modules_use_only_each_other() -> None:
    for path in KERNELS.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        sources = re.findall(r'^import [^;]*? from "([^"]*)";$', text, flags=re.MULTILINE)
        assert len(sources) == len(re.findall(r"^import\b", text, flags=re.MULTILINE)), path.name
        assert all((KERNELS / source).is_file() for source in sources), path.name
        assert not re.search(r"\b(require\(|process\.|document\.|window\.|fetch\(|export default|import\()", text), (
            path.name
        )
        assert text.startswith("// "), path.name


@needs_node
def test_the_script_runs_in_a_worker(tmp_path: Path) -> None:
    data, head = ml.data.figure_1c()
    problem, steps = as_json(data, head, start=[0.5, -0.25]), [0, 7, 300]
    task = """
    const module = new WebAssembly.Module(require("node:fs").readFileSync(require("node:worker_threads").workerData.core));
    globalThis.labCore = { module, instance: new WebAssembly.Instance(module) };
    const { Descent, loopOf } = module_kernels_descent;
    const { readProblem } = module_kernels_problem;
    const { parentPort, workerData } = require("node:worker_threads");
    const run = new Descent(loopOf(readProblem(workerData.problem)));
    run.advance(300);
    parentPort.postMessage(workerData.steps.map((step) => Array.from(run.at(step))));
    """
    script = bundle(["kernels/descent.js", "kernels/problem.js"], task)
    main = f"""
    const {{ Worker }} = require("node:worker_threads");
    const workerData = {json.dumps({"problem": problem, "steps": steps, "core": str(FILE)})};
    new Worker({json.dumps(script)}, {{ eval: true, workerData }}).on("message", (points) => console.log(JSON.stringify(points)));
    """
    path = tmp_path / "main.cjs"
    path.write_text(main, encoding="utf-8")
    done = subprocess.run(["node", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ask([{"call": "descent", "problem": problem, "steps": steps}])[0]["points"]
