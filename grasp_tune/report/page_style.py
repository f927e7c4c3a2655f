"""The look of every page that is written: calm, light and dark, for screens, phones and paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fbfbf9; --card: #ffffff; --ink: #1d2733; --soft: #5a6672; --line: #e3e5e3;
  --accent: #0b6e75; --accent-soft: #d9eeee; --warm: #b4532a; --mark: #8fa1b3;
  --a: #8fa1b3; --b: #c5d0da; --c: #0b6e75; --d: #d49b3d; --e: #eceeec; --f: #b4532a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14191f; --card: #1b222a; --ink: #e4e9ee; --soft: #9aa7b4; --line: #2c3640;
    --accent: #4fc1c5; --accent-soft: #17383b; --warm: #e58b61; --mark: #66788a;
    --a: #7b8c9d; --b: #3d4a57; --c: #4fc1c5; --d: #d9a94f; --e: #252e37; --f: #e58b61;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 58rem;
  background: var(--paper); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 2.75rem 0 .5rem; }
p { margin: .5rem 0; max-width: 44rem; }
h1, h2, p, td, dd, li { overflow-wrap: anywhere; }
.eyebrow { color: var(--soft); font-size: .85rem; margin: 0 0 .25rem; }
.lead { font-size: 1.1rem; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .75rem;
  margin: 1.5rem 0 0; padding: 0; }
.numbers div { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: .7rem .9rem; }
.numbers dt { color: var(--soft); font-size: .82rem; }
.numbers dd { margin: 0; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.note { border-left: 3px solid var(--accent); background: var(--accent-soft);
  border-radius: 0 8px 8px 0; padding: .6rem .9rem; margin: 1rem 0; max-width: 44rem; }
.note.warm { border-color: var(--warm); background: transparent; }
.note p { margin: .25rem 0; }
figure { margin: .75rem 0 0; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; padding: .9rem; }
figcaption { margin-top: .4rem; }
.plot { display: none; height: 24rem; }
.live .plot { display: block; } .live .still { display: none; }
.still { overflow-x: auto; }
svg.chart { display: block; width: 100%; min-width: 30rem; height: auto; }
svg.bar-only { min-width: 0; height: 1.6rem; }
.keys { list-style: none; margin: .7rem 0 0; padding: 0; display: grid; gap: .1rem 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); font-size: .9rem;
  color: var(--soft); }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .6em; }
.key.a { background: var(--a); } .key.b { background: var(--b); } .key.c { background: var(--c); }
.key.d { background: var(--d); } .key.e { background: var(--e); } .key.f { background: var(--f); }
svg .grid { stroke: var(--line); } svg text { fill: var(--soft); font-size: 13px; }
svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .mark { fill: var(--mark); fill-opacity: .75; stroke: var(--card); }
svg .early { fill-opacity: .4; stroke: none; }
svg .chosen { fill: var(--accent); fill-opacity: 1; }
svg .thread { fill: none; stroke: var(--mark); stroke-opacity: .35; }
svg .thread.chosen { stroke: var(--accent); stroke-opacity: .6; fill: none; }
svg .lost { fill: none; stroke: var(--warm); stroke-width: 1.5; }
svg .curve { fill: none; stroke: var(--mark); stroke-opacity: .55; stroke-width: 1.2; }
svg .curve.chosen { stroke: var(--accent); stroke-opacity: 1; stroke-width: 2.2; fill: none; }
svg .curve.lost { stroke: var(--warm); stroke-opacity: .5; stroke-dasharray: 3 3; }
svg .a { fill: var(--a); } svg .b { fill: var(--b); } svg .c { fill: var(--c); }
svg .d { fill: var(--d); } svg .e { fill: var(--e); } svg .f { fill: var(--f); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
td.right, th.right { text-align: right; }
tr.chosen td { color: var(--accent); font-weight: 600; }
td:first-child { overflow-wrap: normal; }
details { margin: .75rem 0; }
summary { cursor: pointer; color: var(--accent); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; line-height: 1.5; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
footer { margin-top: 3.5rem; color: var(--soft); font-size: .85rem;
  border-top: 1px solid var(--line); padding-top: 1rem; }
@media (max-width: 36rem) {
  body { padding: 1.5rem .9rem 3rem; }
  h1 { font-size: 1.4rem; } .plot { height: 19rem; } figure { padding: .6rem; }
  .numbers { grid-template-columns: 1fr 1fr; }
}
@media print {
  :root { --paper: #fff; --card: #fff; --ink: #111; --soft: #444; --line: #ccc;
    --accent: #0b6e75; --accent-soft: #fff; --warm: #a3451d; --mark: #778; --a: #889;
    --b: #ccd; --c: #0b6e75; --d: #c78f35; --e: #eee; --f: #a3451d; color-scheme: light; }
  body { padding: 0; max-width: none; font-size: 11pt; }
  figure, .numbers, table, pre { break-inside: avoid; }
  .live .plot { display: none; } .live .still { display: block; }
}
"""
