"""The page of `hybridflow watch`. It loads nothing from elsewhere."""

from __future__ import annotations

from importlib.resources import files

_STYLE = """
:root { color-scheme: light dark; --text: #1c2733; --quiet: #5b6875; --line: #d5dce2; --card: #fff; --page: #f5f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6ebf0; --quiet: #9aa7b3; --line: #35414c; --card: #1b232b; --page: #11171d; }
}
* { box-sizing: border-box; }
body { margin: 0; padding: 1rem; font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--page); }
main { max-width: 76rem; margin: 0 auto; }
header { display: flex; flex-wrap: wrap; gap: .4rem 1.5rem; align-items: baseline; margin-bottom: .8rem; }
h1 { font-size: 1.15rem; margin: 0; }
h2 { font-size: .95rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: .8rem; }
#tools { margin: .8rem 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .7rem .8rem;
  min-width: 0; }
.state { display: inline-block; border-radius: 99px; padding: 0 .55rem; font-size: .85rem; color: #fff;
  background: #5b6875; }
.state.running { background: #17692b; } .state.compiling, .state.tracing { background: #8a5a00; }
.state.failed, .state.gone { background: #a40000; }
.track { height: 6px; background: var(--line); border-radius: 3px; overflow: hidden; margin: .45rem 0; }
.track > div { height: 100%; background: #1f5fa8; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: 3px; margin-right: .4rem;
  vertical-align: -1px; }
label { cursor: pointer; }
svg { width: 100%; height: 12rem; display: block; touch-action: pan-y; }
svg text { font: 11px system-ui, sans-serif; fill: var(--quiet); }
svg .axis { stroke: var(--line); } svg .curve { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
svg .at { stroke: var(--quiet); stroke-dasharray: 3 3; }
.read { min-height: 1.5em; font-size: .85rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
#lost { color: #fff; background: #a40000; padding: .4rem .7rem; border-radius: 6px; }
.pair { white-space: nowrap; margin-right: .5rem; }
[hidden] { display: none !important; }
"""


def page_of(nonce: str) -> str:
    """Return the page.

    Args:
        nonce: the text by which the server's security policy knows the page's own style and script.
    """
    script = files("hybridflow.train.watch").joinpath("page.js").read_text("utf-8")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>hybridflow watch</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style nonce="{nonce}">{_STYLE}</style></head>
<body><main><header><h1>hybridflow watch</h1><span id="load" class="quiet"></span></header>
<p id="lost" role="alert" hidden>The server does not answer; what is shown is what it said last.</p>
<p id="none" class="quiet" hidden>There are no runs here yet. A
run appears when its first step has logged something.</p>
<div id="runs" class="cards"></div>
<div id="tools" hidden><label><input type="checkbox" id="log"> logarithmic scale</label></div>
<div id="curves" class="cards"></div></main>
<script nonce="{nonce}">{script}</script></body></html>
"""
