"""One palette, and one stylesheet for all pages: light and dark by the reader's setting.

Blue and orange are Okabe and Ito's: distinct with every kind of colour vision, and by lightness.
Pages are light on paper. `body.lesson` is the walkthrough: one column to read from top to bottom.
"""

INK, QUIET, BLUE, ORANGE = "#1b1f24", "#5b6570", "#0072b2", "#d55e00"
LIGHT = f"""
  --paper: #ffffff; --card: #f6f7f9; --ink: {INK}; --quiet: {QUIET}; --rule: #dde1e6;
  --blue: {BLUE}; --orange: {ORANGE}; --grey: #8b95a1; --track: #e4e8ec;
"""
DARK = """
  --paper: #14171b; --card: #1c2026; --ink: #e8eaed; --quiet: #9aa4af; --rule: #323941;
  --blue: #4fb0e8; --orange: #f08a3c; --grey: #78828d; --track: #2b3138;
"""
RULES = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  font-variant-numeric: tabular-nums; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 28px 32px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0; letter-spacing: -0.01em;
  overflow-wrap: anywhere; }
h2 { font-size: 20px; margin: 0 0 16px; letter-spacing: -0.005em; }
h3 { font-size: 14px; margin: 0 0 6px; }
p { margin: 0 0 12px; max-width: 74ch; }
header { margin-bottom: 24px; }
header p { margin: 4px 0 0; }
.over { margin: 0 0 4px; color: var(--blue); font-size: 13px; font-weight: 600;
  letter-spacing: 0.06em; text-transform: uppercase; }
.quiet, figcaption, footer { color: var(--quiet); }
section { margin: 0 0 44px; }
section + section, .findings + section { padding-top: 26px; border-top: 1px solid var(--rule); }
.headline { display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 7fr); gap: 28px;
  align-items: stretch; margin-bottom: 20px; }
.accuracy { padding: 18px 22px 12px; background: var(--card); border-radius: 12px; }
.accuracy .figure { font-size: 60px; font-weight: 700; line-height: 1.1; letter-spacing: -0.03em;
  color: var(--blue); }
.accuracy p { margin: 2px 0 10px; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; }
.tile { flex: 1 1 128px; background: var(--card); border-radius: 12px; padding: 14px 16px;
  display: flex; flex-direction: column; justify-content: center; }
.tile b { font-size: 21px; white-space: nowrap; line-height: 1.25; letter-spacing: -0.01em; }
.tile span { color: var(--quiet); font-size: 13px; }
.findings { font-size: 16px; margin-bottom: 36px; }
.grid { display: grid; gap: 28px 36px; align-items: start; }
.grid.two { grid-template-columns: repeat(2, minmax(0, 1fr)); }
.grid.matrix { grid-template-columns: minmax(0, 11fr) minmax(0, 9fr); }
.grid.three { grid-template-columns: repeat(3, minmax(0, 1fr)); }
figure { margin: 0; break-inside: avoid; min-width: 0; }
figure.wide { margin-bottom: 28px; }
:not(.grid) > figure + div, :not(.grid) > figure + figure { margin-top: 26px; }
figcaption { font-size: 13px; line-height: 1.4; margin-top: 6px; max-width: 74ch; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 6px; font-size: 13px; }
.key { display: inline-flex; align-items: center; gap: 6px; }
.key svg { width: auto; height: 12px; flex: none; }
text { font-size: 12px; fill: var(--ink); }
.tick { fill: var(--quiet); }
.axis-title { fill: var(--quiet); font-size: 12px; }
.mark, .value { font-size: 12px; }
.value { font-size: 10.5px; fill: var(--quiet); }
.mark { font-weight: 600; fill: var(--orange); }
.rule { stroke: var(--rule); stroke-width: 1; }
line.axis { stroke: var(--grey); stroke-width: 1; }
.line { fill: none; stroke: var(--blue); stroke-width: 2; stroke-linejoin: round; }
.dot { fill: var(--blue); }
.band { fill: var(--blue); fill-opacity: 0.16; }
.validation .line, .after .line { stroke: var(--orange); }
.validation .dot, .after .dot { fill: var(--orange); }
.validation .band { fill: var(--orange); }
.ring { fill: none; stroke: var(--orange); stroke-width: 1.5; }
.right, .precision, .before { fill: var(--blue); }
.wrong, .recall { fill: var(--orange); }
.before { fill-opacity: 0.55; }
.neutral { fill: var(--grey); }
.ideal { fill: none; stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 5 4; }
.count { font-size: 11px; }
.count.middle { fill: #14171b; }
.count.strong { fill: var(--paper); font-weight: 600; }
.track { fill: var(--track); }
.filled { fill: var(--blue); fill-opacity: 0.35; }
.interval { fill: var(--blue); }
.chance { stroke: var(--ink); stroke-width: 1.5; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: 600; }
.pairs th { color: var(--quiet); font-weight: 400; width: 40%; }
.grid .pairs th { width: 1%; padding-right: 18px; white-space: nowrap; }
.list thead th { color: var(--quiet); font-weight: 400; }
.number { text-align: right; white-space: nowrap; }
.broken td:first-child { width: 55%; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(112px, 1fr));
  gap: 18px 14px; }
.picture { break-inside: avoid; font-size: 12px; line-height: 1.35; min-width: 0; }
.frame { position: relative; margin-bottom: 5px; }
.frame img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain;
  background: var(--card); border-radius: 6px; }
.frame span { position: absolute; right: 4px; bottom: 4px; padding: 0 5px; border-radius: 4px;
  background: #14171bcc; color: #ffffff; font-size: 11px; line-height: 17px; }
.frame img.pixelated { image-rendering: pixelated; }
.said, .truth { color: var(--quiet); overflow-wrap: anywhere; }
.said b { color: var(--orange); }
.truth b { color: var(--blue); }
.drawing { background: #ffffff; border-radius: 12px; padding: 14px; border: 1px solid var(--rule); }
.drawing img { display: block; margin: 0 auto; max-width: 100%; height: auto; }
pre { background: var(--card); border-radius: 8px; padding: 14px 16px; margin: 0 0 16px;
  white-space: pre-wrap; overflow-wrap: anywhere; }
code, pre { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
details { margin: 16px 0 0; }
summary { cursor: pointer; color: var(--blue); font-weight: 600; font-size: 14px; }
details > table, details > div { margin-top: 10px; }
footer { font-size: 13px; border-top: 1px solid var(--rule); padding-top: 14px; }
.conclusion { font-size: 16px; }
.conclusion li { margin: 0 0 6px; max-width: 84ch; }
.better { color: var(--blue); font-weight: 600; }
.worse { color: var(--orange); font-weight: 600; }
.open { color: var(--quiet); }
.scroll { overflow-x: auto; margin-bottom: 12px; }
.experiment .tile { flex-basis: auto; }
.arms td { overflow-wrap: normal; }
.arms td:first-child { min-width: 215px; }
.arms .what { font-size: 12px; color: var(--quiet); }
@media (max-width: 820px) {
  .headline, .grid.two, .grid.matrix, .grid.three { grid-template-columns: minmax(0, 1fr); }
}
"""
LESSON = """
.lesson { font-size: 16px; line-height: 1.6; }
.lesson main { max-width: 900px; padding-bottom: 48px; }
.lesson h1 { font-size: 32px; margin-bottom: 8px; }
.lesson h2 { font-size: 23px; line-height: 1.3; margin: 56px 0 6px; padding-top: 22px;
  border-top: 2px solid var(--ink); letter-spacing: normal; }
.lesson h3 { font-size: 18px; line-height: 1.35; margin: 0 0 2px; }
.lesson p { max-width: 70ch; }
.lesson section { margin: 0; }
.lesson section + section { padding-top: 0; border-top: none; }
.contents { margin: 16px 0 0; padding-left: 22px; columns: 2; column-gap: 36px; font-size: 15px; }
.lesson a { color: var(--blue); text-decoration: none; }
.lesson a:hover { text-decoration: underline; }
.notice { border-left: 4px solid var(--orange); background: var(--card); padding: 10px 14px;
  border-radius: 0 8px 8px 0; margin: 12px 0 16px; }
.notice p { margin: 0; }
.lesson .step, .lesson section + .step { margin: 28px 0 0; padding: 20px 22px 12px;
  background: var(--card); border-radius: 12px; }
.shape, .worked { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  overflow-wrap: anywhere; }
.shape { color: var(--blue); margin: 0 0 10px; }
.formula { font: italic 18px/1.7 Georgia, "Times New Roman", "DejaVu Serif", serif;
  margin: 2px 0 12px; overflow-wrap: anywhere; white-space: pre-wrap; }
.formula sub, .formula sup { font-size: 12px; line-height: 0; }
.lesson .worked { line-height: 1.7; border-left: 3px solid var(--rule); padding-left: 12px;
  max-width: none; }
.tensors { display: flex; flex-wrap: wrap; gap: 18px 26px; align-items: flex-start;
  margin: 4px 0 14px; }
.lesson figure, .lesson figure + figure { margin: 0; max-width: 100%; }
.lesson figcaption { line-height: 1.45; margin-top: 5px; max-width: 60ch; }
.lesson figcaption b { color: var(--ink); font-weight: 600; }
.tensor { flex: 0 1 auto; }
.tensor:has(.strip) { flex: 1 1 100%; }
.tensor .strip, .tensor .matrix { position: relative; background: var(--paper);
  border: 1px solid var(--rule); max-width: 100%; }
.tensor .strip { height: 22px; width: 100%; }
.cells { display: block; width: 100%; height: 100%; image-rendering: pixelated; }
.marked { position: absolute; outline: 2px solid var(--ink); left: 0; right: 0; min-height: 2px; }
.lesson .picture { flex: 0 1 300px; }
.lesson .picture.small { flex: 0 1 150px; }
.photo { display: block; width: 100%; height: auto; border-radius: 6px; }
.lesson .scroll { margin: 4px 0 14px; min-width: 0; max-width: 100%; }
.lesson .tensors .scroll { margin: 0; }
.lesson table { width: auto; }
.lesson th, .lesson td { padding: 4px 14px 4px 0; white-space: nowrap; overflow-wrap: normal; }
.lesson thead th { vertical-align: bottom; }
.own td { color: var(--orange); font-weight: 600; }
.total td { font-weight: 600; border-bottom: none; }
.swatch { display: inline-block; width: 14px; height: 14px; border-radius: 3px;
  vertical-align: -2px; border: 1px solid var(--rule); }
.swatch.positive { background: COLOUR_ABOVE; } .swatch.negative { background: COLOUR_BELOW; }
.lesson footer { margin-top: 48px; }
@media (max-width: 640px) {
  .lesson main { padding: 24px 14px 32px; }
  .lesson h1 { font-size: 26px; } .lesson h2 { font-size: 20px; margin-top: 40px; }
  .lesson .step, .lesson section + .step { padding: 16px 14px 8px; margin-left: -4px;
    margin-right: -4px; }
  .contents { columns: 1; }
  .formula { font-size: 16px; }
  .lesson .picture.small { flex-basis: calc(50% - 13px); }
  .lesson th, .lesson td { padding-right: 10px; font-size: 13px; }
}
@media print { .lesson .step { break-inside: avoid; background: none;
  border: 1px solid var(--rule); } }
""".replace("COLOUR_ABOVE", ORANGE).replace("COLOUR_BELOW", BLUE)
PRINT = """
  body { font-size: 12px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  h2 { break-after: avoid; }
  .headline { grid-template-columns: minmax(0, 5fr) minmax(0, 7fr); }
  .grid.two { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .grid.matrix { grid-template-columns: minmax(0, 11fr) minmax(0, 9fr); }
  .grid.three { grid-template-columns: repeat(3, minmax(0, 1fr)); }
  details::details-content { content-visibility: visible; block-size: auto; }
  tr, .picture, .grid.three > div { break-inside: avoid; }
  .grid.three { gap: 20px; font-size: 11px; }
  .grid.three table { font-size: 11px; }
  .grid.three .pairs th { white-space: normal; width: 42%; padding-right: 8px; }
"""
STYLE = (
    f":root {{ color-scheme: light dark; {LIGHT} }}\n"
    f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}\n"
    f"{RULES}\n{LESSON}\n@media print {{ {PRINT} }}\n"
)
