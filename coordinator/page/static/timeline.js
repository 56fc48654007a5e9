// Where the time of one checkpoint or restore went: phases, workers, what each did.

import { badge, element, panel, took } from "./dom.js"

const WORKERS_SHOWN = 6 // of one phase, the slowest
const SHARE_SHOWN = 0.01 // of the whole, for a part of a worker's work

export function drawTimeline({ shown }) {
  const trace = shown?.trace
  if (!trace) return null
  const record = shown.attempt ?? shown.restore
  const link = element("a", { href: `/trace/${encodeURIComponent(trace.action)}` }, "as a page")
  const beside = element("span", { class: "beside" }, element("span", { class: "mono dim" }, trace.action), badge(record.state), link)
  const scale = Math.max(trace.took_ms, 1)
  const rows = rowsOf(trace).map(({ span, depth, more }) => (more ? rest(more) : row(span, depth, scale)))
  return panel(
    "Timeline",
    beside,
    moments(trace, record),
    element("div", { class: "ruler", "aria-hidden": "true" }, [0, 0.25, 0.5, 0.75, 1].map((at) => element("span", { style: `left:${100 * at}%` }, took(at * scale)))),
    element("ul", { class: "rows", id: "timeline" }, rows),
  )
}

function moments(trace, record) {
  const chips = [["took", trace.took_ms]]
  if (record.pause_ms) chips.push(["stood still", record.pause_ms])
  for (const { name, at_ms } of trace.moments) chips.push([`${name} at`, at_ms])
  return element("dl", { class: "chips" }, chips.map(([name, ms]) => element("div", { "data-key": name }, element("dt", {}, name), element("dd", {}, took(ms)))))
}

// Each phase, below it its slowest workers, below each of them its ranks and what took it long.
function rowsOf(trace) {
  const children = Map.groupBy ? Map.groupBy(trace.spans, (span) => span.parent) : grouped(trace.spans)
  const ids = new Set(trace.spans.map((span) => span.id))
  const found = []
  for (const phase of trace.spans.filter((span) => !ids.has(span.parent))) {
    found.push({ span: phase, depth: 0 })
    const workers = [...(children.get(phase.id) ?? [])].sort((a, b) => b.took_ms - a.took_ms)
    workers.slice(0, WORKERS_SHOWN).forEach((worker) => {
      found.push({ span: worker, depth: 1 })
      for (const part of children.get(worker.id) ?? []) {
        if (part.took_ms >= SHARE_SHOWN * trace.took_ms || part.failed) found.push({ span: part, depth: 2 })
      }
    })
    if (workers.length > WORKERS_SHOWN) found.push({ more: workers.length - WORKERS_SHOWN })
  }
  return found
}

function grouped(spans) {
  const found = new Map()
  for (const span of spans) found.set(span.parent, [...(found.get(span.parent) ?? []), span])
  return found
}

function row(span, depth, scale) {
  const name = depth === 1 ? [span.name, element("span", { class: "dim" }, ` ${span.node}`)] : span.name
  const bar = element("span", { class: "bar", style: `left:${((100 * span.began_ms) / scale).toFixed(2)}%;width:${((100 * span.took_ms) / scale).toFixed(2)}%` })
  const kind = span.failed ? " bad" : span.late ? " late" : ""
  return element(
    "li",
    { class: `row depth${depth}${kind}`, title: span.failed || (span.late ? "later than the others" : undefined) },
    element("span", { class: "name" }, name),
    element("span", { class: "track", "aria-hidden": "true" }, bar),
    element("span", { class: "took" }, took(span.took_ms)),
  )
}

const rest = (count) => element("li", { class: "row dim" }, `… ${count} more workers were quicker`)
