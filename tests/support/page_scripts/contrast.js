// Every piece of text that is shown, with the contrast between it and what lies behind it (WCAG 2).
const parsed = (text) => {
  const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number)
  return { r, g, b, a }
}
const over = (top, below) => ({
  r: top.r * top.a + below.r * (1 - top.a), g: top.g * top.a + below.g * (1 - top.a),
  b: top.b * top.a + below.b * (1 - top.a), a: 1,
})
const behind = (element) => {
  const layers = []
  for (let at = element; at; at = at.parentElement) layers.push(parsed(getComputedStyle(at).backgroundColor))
  const canvas = matchMedia("(prefers-color-scheme: dark)").matches ? 18 : 255
  return layers.reduceRight((below, layer) => over(layer, below), { r: canvas, g: canvas, b: canvas, a: 1 })
}
const light = ({ r, g, b }) => {
  const [x, y, z] = [r, g, b].map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4))
  return 0.2126 * x + 0.7152 * y + 0.0722 * z
}
const found = []
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
for (let text = walker.nextNode(); text; text = walker.nextNode()) {
  const element = text.parentElement
  if (!text.data.trim() || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue
  if (element.closest("script, style, noscript")) continue
  const ground = behind(element)
  const ink = over(parsed(getComputedStyle(element).color), ground)
  const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a)
  found.push([text.data.trim(), (high + 0.05) / (low + 0.05)])
}
return found
