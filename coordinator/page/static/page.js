// Shows what the coordinator tells, as it changes. It asks for nothing else and changes nothing.

const $ = (id) => document.getElementById(id)
let state = { jobs: [], nodes: [], live: {}, problem: "" }
let view = "jobs" // jobs, nodes, job
let job = "" // whose details are shown
let details = {} // of that job: snapshots, plan, shown (an action with its trace)

// -- small things ---------------------------------------------------------------------------------

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.onclick = value
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value)
  }
  made.append(...children.filter((each) => each !== null && each !== undefined && each !== ""))
  return made
}

function table(heads, rows, empty) {
  if (!rows.length) return element("p", { class: "dim" }, empty)
  const head = element("tr", {}, ...heads.map(([text, kind]) => element("th", { class: kind, scope: "col" }, text)))
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))
}

const cell = (text, kind) => element("td", { class: kind }, text ?? "")
const took = (ms) => (ms < 10_000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`)
const size = (bytes) => {
  const units = ["B", "kB", "MB", "GB", "TB"]
  let unit = 0
  for (; bytes >= 1000 && unit < units.length - 1; unit++) bytes /= 1000
  return `${bytes.toFixed(unit && bytes < 100 ? 1 : 0)} ${units[unit]}`
}
const age = (s) => {
  if (s === null) return "none"
  for (const [limit, unit, one] of [[120, "s", 1], [7200, "min", 60], [172800, "h", 3600]]) {
    if (s < limit) return `${Math.round(s / one)} ${unit} ago`
  }
  return `${Math.round(s / 86400)} days ago`
}
const KINDS = { running: "good", attached: "good", exited: "dim", left: "dim", lost: "bad", damaged: "bad", incomplete: "bad" }

// -- the views ------------------------------------------------------------------------------------

function drawJobs() {
  const rows = state.jobs.map((each) => {
    const live = state.live[each.job]
    const doing = live && !live.last ? `${live.state} ${took(live.elapsed_ms)}` : ""
    const ranks = each.workers.reduce((sum, worker) => sum + worker.ranks.length, 0)
    return element(
      "tr",
      { tabindex: 0, "data-key": each.job, onclick: () => open(each.job) },
      cell(each.job),
      cell(each.state, KINDS[each.state]),
      cell(each.workers.length, "number"),
      cell(ranks, "number"),
      cell(each.step || "", "number"),
      cell(each.latest ? age(each.latest_age_s) : "none", each.latest ? "" : "dim"),
      cell(doing || each.waiting || each.problems[0] || ""),
    )
  })
  const heads = [["Job"], ["State"], ["Workers", "number"], ["Ranks", "number"], ["Step", "number"], ["Newest snapshot"], ["Now"]]
  return [table(heads, rows, "No job has come yet. `allstop shim run --job NAME …` starts one.")]
}

function drawNodes() {
  const rows = state.nodes.map((each) =>
    element(
      "tr",
      { tabindex: 0, "data-key": each.node },
      cell(each.node),
      cell(each.state, KINDS[each.state]),
      cell(each.address),
      cell(each.workers.join(", ") || "spare", each.workers.length ? "" : "dim"),
      cell(size(each.memory_bytes), "number"),
      cell(each.criu_version || "none", each.criu_version ? "" : "bad"),
      cell(each.kernel),
      cell(each.cpu_model),
      cell(each.reason, "dim"),
    ),
  )
  const heads = [["Node"], ["State"], ["Address"], ["Workers"], ["Memory", "number"], ["CRIU"], ["Kernel"], ["Processor"], ["Why"]]
  return [table(heads, rows, "No shim has attached yet.")]
}

function drawLive(live, known) {
  const awaited = new Set(live.awaited.flatMap((each) => each.ranks))
  const phases = live.rows.map((row, index) => {
    const now = index === live.rows.length - 1 && !live.last
    const bar = element("div", { class: "meter" }, element("span", { style: `width:${100 * row.share}%` }))
    const ended = row.ended_ms ?? live.elapsed_ms
    const who = now && row.awaited.length ? `waiting for ${row.awaited.join("; ")}` : row.reason
    const bad = ["ABORTED", "ABORTING", "FAILED", "FAILING"].includes(row.state)
    return element(
      "div",
      { class: `phase${now ? " now" : ""}${bad ? " failed" : ""}`, "data-phase": row.state },
      element("span", {}, row.state),
      bar,
      element("span", { class: "took" }, took(ended - row.started_ms)),
      element("span", { class: now ? "" : "dim" }, who),
    )
  })
  const parts = [element("h2", {}, `${live.action}, ${took(live.elapsed_ms)}`), element("div", { class: "phases" }, ...phases)]
  for (const worker of known?.workers ?? []) parts.push(drawRanks(worker, awaited))
  return parts
}

function drawRanks(worker, awaited) {
  const ranks = worker.ranks.map(([rank, step, parked]) =>
    element(
      "span",
      {
        class: `rank${parked ? " parked" : awaited.has(rank) ? " awaited" : ""}`,
        "data-rank": rank,
        title: parked ? "parked" : awaited.has(rank) ? "awaited" : "runs",
      },
      `${rank}: ${step < 0 ? "–" : step}`,
    ),
  )
  const findings = worker.findings.map((text) => element("li", { class: "late" }, text))
  return element(
    "div",
    {},
    element("span", { class: "dim" }, `worker ${worker.worker} on ${worker.node}, ${worker.state}`),
    element("div", { class: "ranks" }, ...ranks),
    findings.length ? element("ul", {}, ...findings) : "",
  )
}

function drawJob() {
  const known = state.jobs.find((each) => each.job === job)
  if (!known) return [element("p", { class: "dim" }, "Choose a job in the first view.")]
  const live = state.live[job]
  const parts = [element("h2", {}, `${job}: ${known.state}, step ${known.step}, incarnation ${known.incarnation}`)]
  if (live) parts.push(...drawLive(live, known))
  else for (const worker of known.workers) parts.push(drawRanks(worker, new Set()))
  parts.push(element("h2", {}, "Snapshots"), drawSnapshots())
  if (details.shown) parts.push(...drawTrace(details.shown))
  parts.push(element("h2", {}, "Where a restore would put each worker now"), ...drawPlan())
  return parts
}

function drawSnapshots() {
  const rows = [...(details.snapshots?.snapshots ?? [])].reverse().map((each) =>
    element(
      "tr",
      { tabindex: 0, "data-key": each.snapshot, onclick: () => show(each.snapshot) },
      cell(each.snapshot),
      cell(each.step, "number"),
      cell(each.world_size, "number"),
      cell(size(each.image_bytes), "number"),
      cell(new Date(1000 * each.committed_unix_s).toLocaleString()),
      cell(each.snapshot === details.snapshots.latest ? "newest" : "", "dim"),
    ),
  )
  const heads = [["Snapshot"], ["Step", "number"], ["Ranks", "number"], ["Size", "number"], ["Committed"], [""]]
  return table(heads, rows, "None yet.")
}

function drawTrace(shown) {
  const trace = shown.trace
  if (!trace) return []
  const scale = Math.max(trace.took_ms, 1)
  const depths = {}
  const rows = trace.spans.map((span) => {
    const depth = (depths[span.id] = (depths[span.parent] ?? -1) + 1)
    const bar = element("span", {
      style: `left:${(100 * span.began_ms) / scale}%;width:${(100 * span.took_ms) / scale}%`,
    })
    return element(
      "div",
      { class: `row depth${depth}${span.failed ? " bad" : span.late ? " late" : ""}`, title: span.failed || span.name },
      element("span", { class: "name", style: `padding-left:${depth}rem` }, depth === 1 ? `${span.name} ${span.node}` : span.name),
      element("span", { class: "track" }, bar),
      element("span", { class: "took" }, took(span.took_ms)),
    )
  })
  const record = shown.attempt ?? shown.restore
  const link = element("a", { href: `/trace/${encodeURIComponent(trace.action)}` }, "as a page")
  return [
    element("h2", {}, `${trace.action}: ${record.state}, ${took(trace.took_ms)} `, link),
    element("p", { class: "dim" }, record.reason),
    element("div", { class: "rows", id: "timeline" }, ...rows),
  ]
}

function drawPlan() {
  const plan = details.plan
  if (!plan) return [element("p", { class: "dim" }, "There is nothing to restore yet.")]
  const parts = []
  if (plan.failure) parts.push(element("p", { class: "bad" }, plan.failure.what))
  if (plan.plan) {
    const rows = plan.plan.placements.map((each) =>
      element("tr", {}, cell(each.worker, "number"), cell(`${each.from_node} (${each.from_address})`),
        cell(`${each.to_node} (${each.to_address})`, each.from_node === each.to_node ? "" : "late"), cell(each.why, "dim")))
    parts.push(table([["Worker", "number"], ["From"], ["To"], ["Why"]], rows, ""))
  }
  const reasons = plan.refused.filter((each) => each.reasons.length).map((each) =>
    element("li", {}, `${each.node} cannot take worker ${each.worker}: ${each.reasons.join("; ")}`))
  if (reasons.length) parts.push(element("ul", { id: "reasons" }, ...reasons))
  return parts
}

// -- what is asked for ----------------------------------------------------------------------------

async function ask(path) {
  const answer = await fetch(path)
  return answer.ok ? answer.json() : null
}

async function look() {
  const of = job
  const name = encodeURIComponent(of)
  const [snapshots, plan] = await Promise.all([ask(`/api/snapshots/${name}`), ask(`/api/plan/${name}`)])
  if (of !== job) return
  details = { ...details, snapshots, plan }
  draw()
}

async function show(action) {
  const of = job
  const shown = await ask(`/api/show/${encodeURIComponent(action)}`)
  if (of !== job) return
  details = { ...details, shown }
  draw()
}

function open(name) {
  job = name
  details = {}
  go("job")
  look()
}

// -- drawing and keys -----------------------------------------------------------------------------

const DRAW = { jobs: drawJobs, nodes: drawNodes, job: drawJob }

function draw() {
  const at = document.activeElement?.dataset?.key // redrawing must not take the focus away
  for (const name of Object.keys(DRAW)) {
    $(`view-${name}`).hidden = name !== view
    $(`tab-${name}`).setAttribute("aria-selected", String(name === view))
  }
  $(`view-${view}`).replaceChildren(...DRAW[view]())
  if (at !== undefined) document.querySelector(`[data-key="${CSS.escape(at)}"]`)?.focus()
}

function go(name) {
  view = name
  draw()
}

function move(by) {
  const rows = [...document.querySelectorAll(`#view-${view} tr[tabindex]`)]
  if (!rows.length) return
  const at = rows.indexOf(document.activeElement)
  rows[Math.min(rows.length - 1, Math.max(0, at + by))].focus()
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return
  const keys = {
    1: () => go("jobs"), 2: () => go("nodes"), 3: () => go("job"), Escape: () => go("jobs"),
    j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
    Enter: () => document.activeElement?.matches("tr[tabindex]") && document.activeElement.click(),
  }
  const act = keys[event.key]
  if (!act || (event.key === "Enter" && !document.activeElement?.matches("tr[tabindex]"))) return
  event.preventDefault()
  act()
})
for (const name of Object.keys(DRAW)) $(`tab-${name}`).onclick = () => go(name)

function heard(text) {
  const before = state.jobs.find((each) => each.job === job)?.latest
  const ended = state.live[job]?.last
  state = JSON.parse(text)
  const running = Object.values(state.live).filter((each) => !each.last).length
  $("status").textContent = state.problem || `live, ${state.jobs.length} jobs, ${state.nodes.length} nodes${running ? `, ${running} running` : ""}`
  $("status").className = state.problem ? "bad" : ""
  if (job && (before !== state.jobs.find((each) => each.job === job)?.latest || ended !== state.live[job]?.last)) {
    look()
    const live = state.live[job]
    if (live?.last) show(live.action)
  }
  draw()
}

const source = new EventSource("/api/events")
source.onmessage = (event) => heard(event.data)
source.addEventListener("refused", (event) => { $("status").textContent = JSON.parse(event.data) })
source.onerror = () => {
  $("status").textContent = "the coordinator does not answer; trying again"
  $("status").className = "bad"
}
