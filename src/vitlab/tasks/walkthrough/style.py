"""The looks of the walkthrough: the report's colours, one column to read from top to bottom."""

from vitlab.tasks.report.style import DARK, LIGHT

RULES = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  font-variant-numeric: tabular-nums; }
main { max-width: 900px; margin: 0 auto; padding: 40px 28px 48px; }
h1 { font-size: 32px; line-height: 1.2; margin: 0 0 8px; letter-spacing: -0.01em; }
h2 { font-size: 23px; line-height: 1.3; margin: 56px 0 6px; padding-top: 22px;
  border-top: 2px solid var(--ink); }
h3 { font-size: 18px; line-height: 1.35; margin: 0 0 2px; }
p { margin: 0 0 12px; max-width: 70ch; }
ol.contents { margin: 16px 0 0; padding-left: 22px; columns: 2; column-gap: 36px; font-size: 15px; }
a { color: var(--blue); text-decoration: none; }
a:hover { text-decoration: underline; }
.quiet, figcaption, footer { color: var(--quiet); }
.notice { border-left: 4px solid var(--orange); background: var(--card); padding: 10px 14px;
  border-radius: 0 8px 8px 0; margin: 12px 0 16px; }
.notice p { margin: 0; }
.step { margin: 28px 0 0; padding: 20px 22px 12px; background: var(--card); border-radius: 12px; }
.shape { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  color: var(--blue); margin: 0 0 10px; overflow-wrap: anywhere; }
.formula { font: italic 18px/1.7 Georgia, "Times New Roman", "DejaVu Serif", serif;
  margin: 2px 0 12px; overflow-wrap: anywhere; white-space: pre-wrap; }
.formula sub, .formula sup { font-size: 12px; line-height: 0; }
.worked { font: 13px/1.7 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  border-left: 3px solid var(--rule); padding-left: 12px; overflow-wrap: anywhere;
  max-width: none; }
.tensors { display: flex; flex-wrap: wrap; gap: 18px 26px; align-items: flex-start;
  margin: 4px 0 14px; }
figure { margin: 0; min-width: 0; max-width: 100%; }
figcaption { font-size: 13px; line-height: 1.45; margin-top: 5px; max-width: 60ch; }
figcaption b { color: var(--ink); font-weight: 600; }
.tensor { flex: 0 1 auto; }
.tensor:has(.strip) { flex: 1 1 100%; }
.strip, .matrix { position: relative; background: var(--paper); border: 1px solid var(--rule);
  max-width: 100%; }
.strip { height: 22px; width: 100%; }
.cells { display: block; width: 100%; height: 100%; image-rendering: pixelated; }
.marked { position: absolute; outline: 2px solid var(--ink); left: 0; right: 0; min-height: 2px; }
.picture { flex: 0 1 300px; }
.picture.small { flex: 0 1 150px; }
.photo { display: block; width: 100%; height: auto; border-radius: 6px; }
.scroll { overflow-x: auto; margin: 4px 0 14px; min-width: 0; max-width: 100%; }
.tensors .scroll { margin: 0; }
table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: right; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--quiet); font-weight: 400; vertical-align: bottom; }
tr.own td { color: var(--orange); font-weight: 600; }
tr.total td { font-weight: 600; border-bottom: none; }
.key { display: inline-block; width: 14px; height: 14px; border-radius: 3px; vertical-align: -2px;
  border: 1px solid var(--rule); }
.key.positive { background: rgb(213, 94, 0); } .key.negative { background: rgb(0, 114, 178); }
footer { font-size: 13px; margin-top: 48px; border-top: 1px solid var(--rule); padding-top: 14px; }
@media (max-width: 640px) {
  main { padding: 24px 14px 32px; }
  h1 { font-size: 26px; } h2 { font-size: 20px; margin-top: 40px; }
  .step { padding: 16px 14px 8px; margin-left: -4px; margin-right: -4px; }
  ol.contents { columns: 1; }
  .formula { font-size: 16px; }
  .picture.small { flex-basis: calc(50% - 13px); }
  th, td { padding-right: 10px; font-size: 13px; }
}
@media print { .step { break-inside: avoid; background: none; border: 1px solid var(--rule); } }
"""
STYLE = (
    f":root {{ color-scheme: light dark; {LIGHT} }}\n"
    f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}\n{RULES}"
)
