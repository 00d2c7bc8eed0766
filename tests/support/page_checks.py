"""Checks of the page of runs, as scripts that a browser runs in it."""

from __future__ import annotations

# Relative luminance of a colour as WCAG defines it.
LIGHT = """
const light = (text) => {
  const [r, g, b] = text.match(/[0-9.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
"""
# The least contrast of text by the class and the element that it is in.
CONTRASTS = (
    LIGHT
    + """
const found = {};
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const e = texts.currentNode.parentElement, style = getComputedStyle(e);
  if (!texts.currentNode.data.trim() || !e.getClientRects().length || e.closest('.cell')) continue;
  let at = e;
  while (at && getComputedStyle(at).backgroundColor === 'rgba(0, 0, 0, 0)') at = at.parentElement;
  const a = light(style.color), b = light(getComputedStyle(at).backgroundColor);
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const key = e.tagName + '.' + e.className;
  found[key] = Math.min(found[key] ?? 99, contrast);
}
return found;
"""
)
# Cells of tables in which text has more lines than words.
BROKEN = """
return [...document.querySelectorAll('td, th')].filter((e) => {
  const words = e.innerText.split(/[\\s_.\\/-]+/).filter(Boolean).length;
  const line = parseFloat(getComputedStyle(e).lineHeight);
  return words && e.firstChild.nodeType === 3 && e.clientHeight > (words + 1) * line;
}).map((e) => e.innerText);
"""
# The least contrast of the texts of charts, which are pictures, and of their card.
CHARTS = (
    LIGHT
    + """
return [...charts.values()].flatMap((chart) => {
  const ground = getComputedStyle(chart.root.closest('.card')).backgroundColor;
  return chart.axes.filter((axis) => axis.show).map((axis) => {
    const colour = typeof axis.stroke === 'function' ? axis.stroke(chart) : axis.stroke;
    const probe = document.body.appendChild(document.createElement('i'));
    probe.style.color = colour;
    const [a, b] = [light(getComputedStyle(probe).color), light(ground)];
    probe.remove();
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
});
"""
)
# Numbers with a fraction and more than four digits that count, with the text around each. Names are no
# numbers, nor are logs and the settings of the user.
LONG_FIGURES = """
const figure = /(?<![\\w.:-])-?([0-9,]*\\.[0-9]+)(?:e-?[0-9]+)?(?![\\w.:])/g;
const found = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const e = texts.currentNode.parentElement;
  if (!e.getClientRects().length || e.closest('pre, [data-key], script, style')) continue;
  for (const [all, digits] of texts.currentNode.data.matchAll(figure))
    if (digits.replace(/[,.]/g, '').replace(/^0+/, '').length > 4) found.push(all + ' in ' + e.innerText);
}
return found;
"""
# Cards with neither a number other than 0 nor a chart with such a point.
SILENT = """
const filled = (chart) => chart.data.slice(1).some((ys) => ys.some((y) => y != null && y != 0));
const drawn = new Set([...charts.values()].filter(filled).map((chart) => chart.root.closest('.card')));
return [...document.querySelectorAll('.card')].filter((card) => {
  const parts = [...card.children].filter((e) => !/^H[1-6]$/.test(e.tagName));
  const text = parts.map((e) => e.innerText).join(' ');
  return card.getClientRects().length && !drawn.has(card) && !/[1-9]/.test(text);
}).map((card) => card.id);
"""
