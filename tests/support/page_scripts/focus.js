// The element that has the focus: its text, where it leads, and whether a ring is drawn around it.
const at = document.activeElement
const style = getComputedStyle(at)
return {
  text: at.innerText.trim(),
  href: at.getAttribute("href"),
  ring: at.matches(":focus-visible") && style.outlineStyle === "solid" && parseFloat(style.outlineWidth) >= 2,
}
