// Making and keeping elements, and how times and sizes are written.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value === true ? "" : value)
  }
  made.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== "" && each !== false))
  return made
}

// Make what is below `host` equal to `wanted`. What stays is kept as it is: focus, selection, running transitions.
export function patch(host, wanted) {
  let at = host.firstChild
  for (const fresh of wanted) {
    let found = at
    while (found && !alike(found, fresh)) found = fresh.dataset?.key === undefined ? null : found.nextSibling
    if (!found) {
      host.insertBefore(fresh, at)
      continue
    }
    if (found === at) at = at.nextSibling
    else host.insertBefore(found, at)
    renew(found, fresh)
  }
  while (at) {
    const gone = at
    at = at.nextSibling
    gone.remove()
  }
}

function alike(one, other) {
  return one.nodeName === other.nodeName && one.dataset?.key === other.dataset?.key
}

function renew(kept, fresh) {
  if (kept.nodeType === Node.TEXT_NODE) {
    if (kept.data !== fresh.data) kept.data = fresh.data
    return
  }
  for (const { name } of [...kept.attributes]) if (!fresh.hasAttribute(name)) kept.removeAttribute(name)
  for (const { name, value } of fresh.attributes) if (kept.getAttribute(name) !== value) kept.setAttribute(name, value)
  patch(kept, [...fresh.childNodes])
}

// Columns are [text, class]; on narrow screens each cell carries its column's name.
export function table(columns, rows, label) {
  const head = element("tr", {}, columns.map(([text, kind]) => element("th", { class: kind, scope: "col" }, text)))
  const body = rows.map(({ key, href, cells, current }) =>
    element(
      "tr",
      { "data-key": key, "data-href": href, "aria-current": current ? "true" : undefined },
      cells.map((content, index) =>
        element("td", { class: columns[index][1], "data-label": columns[index][0] }, element("div", {}, content)),
      ),
    ),
  )
  return element("table", { "aria-label": label }, element("thead", {}, head), element("tbody", {}, body))
}

export function empty(title, text, command) {
  return element(
    "div",
    { class: "empty" },
    element("p", { class: "title" }, title),
    element("p", {}, text),
    command ? element("pre", {}, element("code", {}, command)) : null,
  )
}

const KINDS = {
  good: ["running", "attached", "COMMITTED", "RUNNING"],
  busy: ["checkpointing", "restoring", "starting", "held", "stopped", "restored"],
  bad: ["lost", "damaged", "incomplete", "faulted", "ABORTED", "FAILED"],
}

export function badge(state) {
  const kind = Object.keys(KINDS).find((each) => KINDS[each].includes(state)) ?? "still"
  return element("span", { class: `badge ${kind}` }, state)
}

export function panel(title, beside, ...content) {
  const head = element("div", { class: "head" }, element("h2", {}, title), beside)
  return element("section", { class: "panel", "data-key": title }, head, ...content)
}

export const number = (value) => value.toLocaleString("en")
export const plural = (count, one) => `${number(count)} ${one}${count === 1 ? "" : "s"}`

export function took(ms) {
  if (ms < 999.5) return `${Math.round(ms)} ms`
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)} s`
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`
}

export function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"]
  let unit = 0
  for (; bytes >= 999.5 && unit < units.length - 1; unit++) bytes /= 1000
  return `${bytes.toFixed(unit && bytes < 99.95 ? 1 : 0)} ${units[unit]}`
}

export function age(s) {
  for (const [limit, unit, one] of [[60, "s", 1], [3600, "min", 60], [172_800, "h", 3600]]) {
    if (s < limit) return `${Math.floor(s / one)} ${unit} ago`
  }
  return `${Math.floor(s / 86_400)} days ago`
}
