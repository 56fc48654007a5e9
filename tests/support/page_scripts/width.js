// What is wider than the window.
const found = []
if (document.documentElement.scrollWidth > innerWidth) found.push(`page ${document.documentElement.scrollWidth}`)
for (const each of document.querySelectorAll("main *, header *, footer *")) {
  const box = each.getBoundingClientRect()
  if (box.width && (box.right > innerWidth + 0.5 || box.left < -0.5) && !each.closest("thead, .skip, pre")) {
    found.push(`${each.tagName}.${each.className} ${Math.round(box.left)}..${Math.round(box.right)}`)
  }
}
return found
