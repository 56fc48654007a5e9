// The views of all jobs and of all nodes.

import { age, badge, element, empty, number, size, table, took } from "./dom.js"

export const jobLink = (job, action) => `#/jobs/${encodeURIComponent(job)}${action ? `/${encodeURIComponent(action)}` : ""}`
export const ranksOf = (job) => job.workers.flatMap((worker) => worker.ranks)
export const isRunning = (live) => Boolean(live) && !live.last

function tile(value, label, kind) {
  return element("div", { class: `tile ${kind ?? ""}`, "data-key": label }, element("dt", {}, label), element("dd", {}, value))
}

export function drawJobs({ jobs, nodes, live }) {
  const attached = nodes.filter((each) => each.state === "attached")
  const running = Object.values(live).filter(isRunning).length
  const lost = nodes.filter((each) => each.state === "lost").length
  const tiles = element(
    "dl",
    { class: "tiles" },
    tile(number(jobs.filter((each) => each.state !== "exited").length), "jobs"),
    tile(number(jobs.reduce((sum, each) => sum + ranksOf(each).length, 0)), "ranks"),
    tile(number(running), "saved or restored now", running ? "busy" : ""),
    tile(number(attached.length), "nodes attached"),
    tile(number(attached.filter((each) => !each.workers.length).length), "of them spare"),
    tile(number(lost), "nodes lost", lost ? "bad" : ""),
  )
  if (!jobs.length) {
    const command = "allstop shim run --coordinator HOST:7411 --store DIR \\\n    --job NAME --workers N --worker I -- torchrun … train.py"
    return [element("h1", {}, "Jobs"), tiles, empty("No job has come yet", "A job appears when its first shim attaches. On each node:", command)]
  }
  const columns = [["Job"], ["State"], ["Workers", "number"], ["Ranks", "number"], ["Step", "number"], ["Newest snapshot"], ["Now", "wide"]]
  return [element("h1", {}, "Jobs"), tiles, table(columns, jobs.map((each) => jobRow(each, live[each.job])), "Jobs")]
}

function jobRow(job, live) {
  const link = element("a", { href: jobLink(job.job), "data-move": true, class: "strong" }, job.job)
  return {
    key: job.job,
    href: jobLink(job.job),
    cells: [
      link,
      badge(job.state),
      number(job.workers.length),
      number(ranksOf(job).length),
      job.step ? number(job.step) : "–",
      job.latest ? age(job.latest_age_s) : element("span", { class: "dim" }, "none"),
      doing(job, live),
    ],
  }
}

function doing(job, live) {
  if (job.problems.length) return element("span", { class: "bad" }, job.problems[0])
  if (isRunning(live)) {
    const row = live.rows.at(-1)
    const done = live.awaited.length && row.expected ? `, ${row.done} of ${row.expected} workers done` : ""
    return [element("span", { class: "busy strong" }, live.state), ` ${took(live.elapsed_ms)}${done}`]
  }
  if (job.waiting) return element("span", { class: "late" }, job.waiting)
  if (live?.last && live.state !== "COMMITTED" && live.state !== "RUNNING") return [element("span", { class: "bad" }, live.state), ` ${live.reason}`]
  const findings = job.workers.flatMap((worker) => worker.findings)
  return findings.length ? element("span", { class: "late" }, findings[0]) : element("span", { class: "dim" }, "–")
}

export function drawNodes({ nodes }) {
  const title = element("h1", {}, "Nodes")
  if (!nodes.length) {
    return [title, empty("No shim has attached yet", "Each node runs one; a node without a worker is a spare:", "allstop shim --coordinator HOST:7411 --store DIR")]
  }
  const columns = [["Node"], ["State"], ["Workers"], ["Address"], ["Memory free", "number"], ["Staging free", "number"], ["Machine"], ["CRIU"]]
  const order = { lost: 0, attached: 1, left: 2 }
  const sorted = [...nodes].sort((a, b) => order[a.state] - order[b.state] || a.node.localeCompare(b.node, "en", { numeric: true }))
  return [title, table(columns, sorted.map(nodeRow), "Nodes")]
}

function nodeRow(node) {
  const why = node.reason ? element("div", { class: node.state === "lost" ? "bad note" : "dim note" }, node.reason) : null
  const drain = node.drain ? element("div", { class: node.drain.state === "failed" ? "bad note" : "dim note" }, drainWords(node.drain)) : null
  return {
    key: node.node,
    cells: [
      [element("span", { class: "strong" }, node.node), why, drain],
      badge(node.state),
      node.workers.length ? node.workers.map((each) => workerLink(each, node.state)) : element("span", { class: "dim" }, node.state === "attached" ? "spare" : "–"),
      element("span", { class: "mono line" }, node.address),
      [size(node.memory_free_bytes), element("span", { class: "dim" }, ` of ${size(node.memory_bytes)}`)],
      size(node.staging_free_bytes),
      [node.cpu_model, element("div", { class: "dim note" }, `${node.architecture}, Linux ${node.kernel}`)],
      node.criu_version || element("span", { class: "bad" }, "none that works"),
    ],
  }
}

function drainWords({ state, why, reason }) {
  const words = { draining: "is being drained", drained: "is drained", failed: `could not be drained: ${reason}`, undraining: "takes workers again soon" }
  return why ? `${words[state]} (${why})` : words[state]
}

function workerLink({ job, worker, state }, node) {
  const link = element("a", { href: jobLink(job), "data-move": true }, `${job} ${worker}`)
  return element("div", { class: "line" }, link, " ", badge(node === "attached" ? state : `was ${state}`))
}
