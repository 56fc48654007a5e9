// Shows what the coordinator tells, as it changes. It asks for nothing else and changes nothing.

import { element, patch } from "./dom.js"
import { drawJobs, drawNodes, isRunning } from "./jobs.js"
import { drawJob } from "./job.js"

const $ = (id) => document.getElementById(id)
let state = { jobs: [], nodes: [], live: {}, problem: "", heard: false }
let details = {} // of the job that is shown: snapshots, plan, and an action with its trace
let asked = "" // what `details` were asked for

// -- where we are: #/, #/nodes, #/jobs/JOB, #/jobs/JOB/ACTION ----------------------------------------

function place() {
  const [view, job, action] = location.hash.replace(/^#\/?/, "").split("/").map(decoded)
  if (view === "jobs" && job) return { view: "job", job, action }
  return { view: view === "nodes" ? "nodes" : "jobs" }
}

function decoded(text) {
  try {
    return decodeURIComponent(text)
  } catch {
    return text // typed by hand
  }
}

function draw() {
  const { view, job } = place()
  for (const [name, is] of [["to-jobs", view !== "nodes"], ["to-nodes", view === "nodes"]]) {
    if (is) $(name).setAttribute("aria-current", "page")
    else $(name).removeAttribute("aria-current")
  }
  $("count-jobs").textContent = state.heard ? state.jobs.length : ""
  $("count-nodes").textContent = state.heard ? state.nodes.length : ""
  document.title = titleOf(view, job)
  if (!state.heard) return
  const views = { jobs: () => drawJobs(state), nodes: () => drawNodes(state), job: () => drawJob(state, job, details) }
  patch($("view"), views[view]())
}

function titleOf(view, job) {
  if (view !== "job") return view === "nodes" ? "Nodes · allstop" : "Jobs · allstop"
  const live = state.live[job]
  return `${job}${isRunning(live) ? `: ${live.state}` : ""} · allstop`
}

// -- details of one job, asked for when something about it has changed --------------------------------

async function ask(path) {
  try {
    return await (await fetch(path)).json()
  } catch {
    return null // the status line says that nobody answers
  }
}

function wanted() {
  const { view, job, action } = place()
  if (view !== "job" || !state.heard) return ""
  const known = state.jobs.find((each) => each.job === job)
  const nodes = state.nodes.map((each) => [each.node, each.state, each.workers.length])
  return JSON.stringify([job, action, known?.latest, known?.state, known?.incarnation, state.live[job]?.last, nodes])
}

async function look() {
  const now = wanted()
  if (!now || now === asked) return
  const { job, action } = place()
  if (asked && JSON.parse(asked)[0] !== job) details = {}
  asked = now
  const name = encodeURIComponent(job)
  const live = state.live[job]
  const latest = state.jobs.find((each) => each.job === job)?.latest
  const shown = action || (live?.last ? live.action : "") || latest
  const [snapshots, plan, trace] = await Promise.all([
    ask(`/api/snapshots/${name}`),
    latest ? ask(`/api/plan/${name}`) : { error: { what: "No snapshot has been committed yet." } },
    shown ? ask(`/api/show/${encodeURIComponent(shown)}`) : null,
  ])
  if (asked !== now) return // something newer has been asked for
  details = { snapshots, plan, shown: trace, action: shown }
  draw()
}

// -- keys and clicks ----------------------------------------------------------------------------------

function move(by) {
  const links = [...document.querySelectorAll("#view [data-move]")]
  const at = links.indexOf(document.activeElement)
  links[Math.min(links.length - 1, Math.max(0, at + by))]?.focus()
}

const KEYS = {
  1: () => (location.hash = "#/"),
  2: () => (location.hash = "#/nodes"),
  Escape: () => (location.hash = "#/"),
  j: () => move(1),
  k: () => move(-1),
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return
  event.preventDefault()
  KEYS[event.key]()
})

document.addEventListener("click", (event) => {
  if (event.target.closest(".skip")) {
    event.preventDefault() // the address says what is shown, not where the focus is
    $("view").focus()
  }
  const row = event.target.closest("tr[data-href]")
  if (row && !event.target.closest("a") && !getSelection().toString()) location.hash = row.dataset.href
})

addEventListener("hashchange", () => {
  draw()
  look()
})

// -- what is heard ------------------------------------------------------------------------------------

function status(text, kind) {
  if ($("status").textContent !== text) $("status").textContent = text
  $("status").className = kind
}

function heard(text) {
  state = { ...JSON.parse(text), heard: true }
  if (state.problem) status(state.problem, "bad")
  else status("live", "good")
  draw()
  look()
}

const source = new EventSource("/api/events")
source.onmessage = (event) => heard(event.data)
source.addEventListener("refused", (event) => status(JSON.parse(event.data), "bad"))
source.onerror = () => status("the coordinator does not answer; trying again", "bad")
patch($("view"), [element("p", { class: "dim" }, "Asking the coordinator.")])
