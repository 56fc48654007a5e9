// The view of one job: what runs now, its ranks, its snapshots, and where a restore would go.

import { age, badge, element, empty, number, panel, plural, size, table, took } from "./dom.js"
import { isRunning, jobLink, ranksOf } from "./jobs.js"
import { drawTimeline } from "./timeline.js"

const ORDER = {
  checkpoint: ["ADMITTING", "HOLDING", "PARKING", "DUMPING", "PERSISTING", "COMMITTING", "COMMITTED"],
  restore: ["ADMITTING", "FETCHING", "CLEARING", "RESTORING", "RELEASING", "RUNNING"],
}
const MEANS = {
  ADMITTING: "whether it may begin",
  HOLDING: "workers are told to stop at the next step",
  PARKING: "all ranks run on to one step and wait there",
  DUMPING: "CRIU writes every worker; then the job runs on",
  PERSISTING: "images go to the store while the job runs",
  COMMITTING: "one transaction makes it a snapshot",
  FETCHING: "images are brought to the nodes",
  CLEARING: "what is left of the old incarnation goes",
  RESTORING: "every worker comes back, stopped",
  RELEASING: "all are back and are let go",
}
const BAD = ["ABORTED", "ABORTING", "FAILED", "FAILING"]
const ENDS = ["COMMITTED", "RUNNING", "ABORTED", "FAILED"]

export function drawJob(state, name, details) {
  const job = state.jobs.find((each) => each.job === name)
  const way = element("p", { class: "way" }, element("a", { href: "#/" }, "Jobs"), " / ")
  if (!job) {
    const told = state.heard ? "No job of this name is known" : "Asking the coordinator"
    return [way, element("h1", {}, name), empty(told, "It appears here when its first shim attaches.")]
  }
  const live = state.live[name]
  return [
    way,
    element("h1", {}, job.job, " ", badge(job.state)),
    facts(job),
    ...job.problems.map((text) => callout("bad", text)),
    job.waiting ? callout("late", job.waiting) : null,
    live ? drawLive(live, job) : null,
    drawRanks(job, live),
    drawSnapshots(job, details),
    drawTimeline(details),
    drawPlan(details),
  ].filter(Boolean)
}

function facts(job) {
  const latest = job.latest ? [age(job.latest_age_s), element("a", { class: "dim", href: jobLink(job.job, job.latest) }, ` ${job.latest}`)] : "none yet"
  const rows = [
    ["Step", job.step ? number(job.step) : "–"],
    ["Ranks", `${number(ranksOf(job).length)} on ${plural(job.workers.length, "node")}`],
    ["Incarnation", job.incarnation],
    ["Newest snapshot", latest],
  ]
  return element("dl", { class: "facts" }, rows.map(([label, value]) => element("div", { "data-key": label }, element("dt", {}, label), element("dd", {}, value))))
}

function callout(kind, ...content) {
  return element("p", { class: `callout ${kind}` }, ...content)
}

// -- what runs now --------------------------------------------------------------------------------

function drawLive(live, job) {
  const kind = live.kind === "restore" ? "Restore" : "Checkpoint"
  const time = element("span", { class: "beside" }, element("span", { class: "mono dim" }, live.action), element("strong", { id: "elapsed" }, took(live.elapsed_ms)))
  const said = live.last
    ? callout(BAD.includes(live.state) ? "bad" : "good", element("strong", {}, live.state), ` ${live.reason}`)
    : awaitedWords(live, job)
  return panel(`${kind} ${live.last ? "that ended last" : "now"}`, time, said, element("ol", { class: "phases" }, phasesOf(live).map(drawPhase)))
}

// Phases that are over or begun, as they were heard, with those before and after them by name.
function phasesOf(live) {
  const order = ORDER[live.kind] ?? ORDER.checkpoint
  const heard = live.rows.filter((row) => !ENDS.includes(row.state))
  const seen = live.rows.map((row) => order.indexOf(row.state)).filter((at) => at >= 0)
  const first = seen.length ? Math.min(...seen) : order.length
  const last = live.last || live.rows.some((row) => BAD.includes(row.state)) ? order.length : seen.length ? Math.max(...seen) : -1
  const named = (states, stage) => states.filter((each) => !ENDS.includes(each)).map((each) => ({ state: each, stage }))
  return [
    ...named(order.slice(0, first), "before"),
    ...heard.map((row, index) => ({ ...row, stage: index === heard.length - 1 && !live.last ? "now" : "over", elapsed_ms: live.elapsed_ms })),
    ...named(order.slice(last + 1), "after"),
  ]
}

function drawPhase(phase) {
  const bad = BAD.includes(phase.state)
  const begun = phase.started_ms !== undefined
  const share = phase.stage === "before" ? 1 : (phase.share ?? 0)
  const count = phase.stage === "now" && phase.expected ? `${phase.done} of ${phase.expected}` : ""
  const bytes = phase.stage === "now" && phase.total_bytes ? `${size(phase.done_bytes)} of ${size(phase.total_bytes)}` : ""
  const means = bad ? phase.reason : (MEANS[phase.state] ?? phase.reason)
  return element(
    "li",
    { class: `phase ${phase.stage}${bad ? " failed" : ""}`, "data-phase": phase.state, "data-key": phase.state, "aria-current": phase.stage === "now" ? "step" : undefined },
    element("span", { class: "name" }, phase.state),
    element("span", { class: "bar", "aria-hidden": "true" }, element("span", { style: `width:${(100 * share).toFixed(1)}%` })),
    element("span", { class: "took" }, begun ? took((phase.ended_ms ?? phase.elapsed_ms) - phase.started_ms) : ""),
    element("span", { class: "means" }, [count, bytes, means].filter(Boolean).join(" · ")),
  )
}

// Who is awaited; of ranks that wait for each other, the ones furthest behind are what to look at.
function awaitedWords(live, job) {
  if (!live.awaited.length) return callout("calm", live.reason || "nobody is awaited")
  const names = live.awaited.map((each) => `worker ${each.worker} on ${each.node}`)
  const shown = [...new Set(names)].slice(0, 4)
  const more = new Set(names).size - shown.length + live.unnamed
  const age_ms = Math.max(...live.awaited.map((each) => each.age_ms))
  const words = [element("strong", {}, "Waiting for "), `${shown.join(", ")}${more ? ` and ${more} more` : ""}, for ${took(age_ms)}. `]
  const behind = live.state === "HOLDING" || live.state === "PARKING" ? furthestBehind(live, job) : []
  if (behind.length) {
    const ranks = behind.slice(0, 8).map(([rank]) => rank).join(", ")
    words.push(element("span", { id: "behind" }, `Furthest behind: ${behind.length === 1 ? "rank" : "ranks"} ${ranks}, at step ${behind[0][1]}.`))
  }
  return callout("late", ...words)
}

function furthestBehind(live, job) {
  const awaited = new Set(live.awaited.flatMap((each) => each.ranks))
  const ranks = ranksOf(job).filter(([rank, , parked]) => awaited.has(rank) && !parked)
  const lowest = Math.min(...ranks.map(([, step]) => step))
  const behind = ranks.filter(([, step]) => step === lowest)
  return behind.length < ranksOf(job).length ? behind : []
}

// -- ranks ----------------------------------------------------------------------------------------

function drawRanks(job, live) {
  const running = isRunning(live)
  const awaited = new Set(running ? live.awaited.flatMap((each) => each.ranks) : [])
  const behind = new Set(running && awaited.size ? furthestBehind(live, job).map(([rank]) => rank) : [])
  const legend = element("span", { class: "beside legend" }, ["runs", "parked", "awaited", "behind"].map((each) => element("span", { class: `rank ${each}` }, each)))
  if (!job.workers.length) return panel("Ranks", null, empty("No worker is there", "None of the job's shims is attached."))
  return panel("Ranks", running ? legend : null, ...job.workers.map((worker) => drawWorker(worker, awaited, behind)))
}

function drawWorker(worker, awaited, behind) {
  const ranks = worker.ranks.map(([rank, step, parked]) => {
    const how = parked ? "parked" : behind.has(rank) ? "behind" : awaited.has(rank) ? "awaited" : "runs"
    const at = step < 0 ? "–" : number(step)
    return element("li", { class: `rank ${how}`, "data-rank": rank, "data-key": rank, title: `rank ${rank} ${how}, step ${at}` }, element("b", {}, rank), element("span", {}, at))
  })
  const findings = worker.findings.map((text) => element("li", {}, text))
  return element(
    "div",
    { class: "worker", "data-key": worker.worker },
    element("div", { class: "who" }, element("b", {}, `worker ${worker.worker}`), element("span", { class: "dim" }, ` ${worker.node} `), badge(worker.state)),
    ranks.length ? element("ul", { class: "ranks" }, ranks) : element("span", { class: "dim" }, "no rank is known yet"),
    findings.length ? element("ul", { class: "findings" }, findings) : null,
  )
}

// -- snapshots and the way back -------------------------------------------------------------------

function drawSnapshots(job, { snapshots, action }) {
  const found = snapshots?.snapshots ?? []
  if (!found.length) return panel("Snapshots", null, empty("No snapshot yet", "All ranks stop at one step, are saved, and go on:", `allstop checkpoint ${job.job}`))
  const columns = [["Snapshot"], ["Step", "number"], ["Ranks", "number"], ["Size", "number"], ["Cut"], ["Committed"]]
  const rows = [...found].reverse().map((each) => ({
    key: each.snapshot,
    href: jobLink(job.job, each.snapshot),
    current: each.snapshot === action,
    cells: [
      [element("a", { class: "mono", href: jobLink(job.job, each.snapshot), "data-move": true }, each.snapshot), " ", each.snapshot === snapshots.latest ? element("span", { class: "badge good" }, "newest") : null, each.suspect ? element("span", { class: "badge bad", title: each.suspect }, "suspect") : null],
      number(each.step),
      number(each.world_size),
      size(each.image_bytes),
      each.cut,
      new Date(1000 * each.committed_unix_s).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" }),
    ],
  }))
  return panel("Snapshots", element("span", { class: "beside dim" }, plural(found.length, "snapshot")), table(columns, rows, "Snapshots"))
}

function drawPlan({ plan }) {
  const title = "Where a restore would put each worker now"
  if (!plan) return panel(title, null, element("p", { class: "dim" }, "Asking the coordinator."))
  if (plan.error) return panel(title, null, empty("Nothing to restore", plan.error.what))
  const parts = []
  if (plan.failure) parts.push(callout("bad", element("strong", {}, "It would be refused: "), `${plan.failure.what}; ${plan.failure.advice}`))
  if (plan.unseen) parts.push(callout("bad", element("strong", {}, "The job may still run out of sight: "), `${plan.unseen}. A restore needs --old-run-ended.`))
  if (plan.plan) parts.push(placements(plan.plan))
  for (const note of plan.plan?.notes ?? []) parts.push(callout("calm", note))
  const others = (plan.fits ?? []).filter((each) => !each.chosen).map(({ node, worker, why }) => ({ node, worker, reasons: [why] }))
  if (others.length) parts.push(element("h3", {}, "Nodes that fit too, and why they were not chosen"), refusals(others, "others"))
  if (plan.refused.length) parts.push(element("h3", {}, "Nodes that cannot take a worker, and why"), refusals(plan.refused, "reasons"))
  const beside = plan.plan ? element("span", { class: "beside mono dim" }, plan.plan.snapshot) : null
  return panel(title, beside, ...parts)
}

function placements(plan) {
  const columns = [["Worker"], ["From"], ["To"], ["Why", "wide"]]
  const place = (node, address, kind) => [element("span", { class: `strong ${kind}` }, node), element("span", { class: "mono dim line" }, ` ${address}`)]
  const rows = plan.placements.map((each) => ({
    key: each.worker,
    cells: [
      each.worker,
      place(each.from_node, each.from_address, ""),
      [place(each.to_node, each.to_address, ""), " ", each.from_node === each.to_node ? null : element("span", { class: "badge busy" }, "moves")],
      element("span", { class: "dim" }, each.why),
    ],
  }))
  return table(columns, rows, "Plan")
}

// One line for a node and one set of reasons, with all workers that they keep away.
function refusals(refused, id) {
  const lines = new Map()
  for (const { node, worker, reasons } of refused) {
    const key = `${node}: ${reasons.join("; ")}`
    if (!lines.has(key)) lines.set(key, { node, reasons, workers: [] })
    lines.get(key).workers.push(worker)
  }
  const rows = [...lines].map(([key, { node, reasons, workers }]) => ({
    key,
    cells: [element("span", { class: "strong" }, node), workers.join(", "), element("ul", { class: "reasons" }, reasons.map((each) => element("li", {}, each)))],
  }))
  const made = table([["Node"], ["Workers"], ["Reasons", "wide"]], rows, "Reasons")
  made.id = id
  return made
}
