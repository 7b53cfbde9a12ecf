"""The page at ``/``: models, live figures, and a form that asks one. It loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>hybridflow serve</title><style>
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
#models{overflow-wrap:anywhere}table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:left}
textarea{width:100%;height:7rem;box-sizing:border-box}select{max-width:100%}
.bar{background:#4878d0;height:.8rem}pre{background:#f4f4f4;padding:.6rem;overflow:auto;max-height:20rem}
@media(max-width:40rem){#models td{display:block;padding-right:0}#models tr{display:block;margin-bottom:1rem}}
</style></head><body><h1>hybridflow serve</h1><h2>Models</h2><div id="models"></div>
<h2>Latency, seconds</h2><table id="latency"></table><h2>Rows in a batch</h2><table id="rows"></table>
<h2>Ask</h2><select id="which"></select>
<textarea id="body"></textarea><button id="ask">Ask</button><pre id="said"></pre>
<script>
const at = id => document.getElementById(id), cell = (row, text) => { row.insertCell().textContent = text; };
let models = [];
function showModels() {
  const table = document.createElement("table");
  for (const model of models) for (const [name, one] of Object.entries(model.functions)) {
    const row = table.insertRow(), specs = x => Object.entries(x).map(([k, v]) => k + ": " + v).join(", ");
    cell(row, model.name + " " + model.version);
    cell(row, name + "(" + specs(one.inputs) + ") → " + specs(one.outputs));
    cell(row, one.flops + " FLOPs"); cell(row, one.alone ? "alone: " + one.alone : "in batches");
  }
  at("models").replaceChildren(table);
  at("which").replaceChildren(...models.map((model, index) => {
    const option = document.createElement("option");
    option.value = index; option.textContent = model.name + " " + model.version; return option; }));
  fill();
}
function fill() {
  const model = models[at("which").value || 0];
  if (model) at("body").value = JSON.stringify({inputs: Object.values(model.functions)[0].sample});
}
async function ask() {
  const model = models[at("which").value];
  const path = "/v1/models/" + model.name + "/versions/" + model.version + ":predict";
  const signature = Object.keys(model.functions)[0];
  try {
    const body = JSON.stringify({signature_name: signature, ...JSON.parse(at("body").value)});
    at("said").textContent = await (await fetch(path, {method: "POST", body})).text();
  } catch (error) { at("said").textContent = String(error); }
  look();
}
async function look() {
  const text = await (await fetch("/metrics")).text(), found = {latency: {}, rows: {}};
  for (const line of text.split("\\n")) {
    const match = line.match(/^hybridflow_(request_seconds|batch_rows)_bucket\\{.*le="([^"]+)"\\} (.+)$/);
    if (match) { const own = found[match[1] === "batch_rows" ? "rows" : "latency"];
      own[match[2]] = (own[match[2]] || 0) + Number(match[3]); }
  }
  for (const [id, own] of Object.entries(found)) {
    let before = 0; const table = at(id), counts = Object.entries(own).sort((a, b) => parse(a[0]) - parse(b[0]));
    const all = Math.max(...counts.map(one => one[1]), 1);
    table.replaceChildren();
    for (const [bound, count] of counts) {
      const row = table.insertRow(), bar = document.createElement("div");
      cell(row, "≤ " + bound); cell(row, count - before); bar.className = "bar";
      bar.style.width = `calc(${(count - before) / all} * min(20rem, 45vw))`;
      row.insertCell().append(bar); before = count;
    }
  }
}
const parse = bound => bound === "+Inf" ? Infinity : Number(bound);
at("which").onchange = fill; at("ask").onclick = ask;
fetch("/models").then(response => response.json()).then(found => { models = found; showModels(); });
look(); setInterval(look, 2000);
</script></body></html>
"""


def _digest(tag: str) -> str:
    """Return the digest by which a policy allows the page's element of a kind."""
    text = PAGE.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; style-src {_digest('style')}; script-src {_digest('script')}; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""The page's content security policy: its own style and script, and requests to this server."""
