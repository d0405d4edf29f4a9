// @ts-check
/**
 * News from the board. A browser has six connections to a host, so of all its windows one holds the stream and tells
 * the others. Events carry counts only, and pages ask for what they show: a stream that was cut off loses nothing.
 */

/** @typedef {Record<string, [number, number, string] | null>} News */

/**
 * @param {(news: News) => void} told @param {(answers: boolean) => void} answers whether the board does
 */
export function follow(told, answers) {
  if (!navigator.locks || !("BroadcastChannel" in window)) {
    poll(told, answers);
    return;
  }
  const channel = new BroadcastChannel("board-news");
  channel.onmessage = (event) => hear(event.data, told, answers);
  navigator.locks.request("board-stream", () => new Promise(() => stream(channel, told, answers)));
}

/** @param {{news?: News, answers?: boolean}} said @param {(news: News) => void} told @param {(a: boolean) => void} answers */
function hear(said, told, answers) {
  if (said.answers != null) answers(said.answers);
  if (said.news) told(said.news);
}

/** @param {BroadcastChannel} channel @param {(news: News) => void} told @param {(a: boolean) => void} answers */
function stream(channel, told, answers) {
  const say = (/** @type {{news?: News, answers?: boolean}} */ said) => {
    hear(said, told, answers);
    channel.postMessage(said);
  };
  const open = () => {
    const source = new EventSource("/api/events");
    source.onopen = () => say({ answers: true });
    source.addEventListener("runs", (event) => say({ news: JSON.parse(event.data) }));
    source.onerror = () => {
      say({ answers: false });
      // After an answer that is no stream a browser never tries again by itself.
      if (source.readyState === EventSource.CLOSED) setTimeout(open, 1000);
    };
  };
  open();
}

/** @param {(news: News) => void} told @param {(a: boolean) => void} answers */
async function poll(told, answers) {
  try {
    const { runs } = await (await fetch("/api/runs")).json();
    const news = runs.map((/** @type {any} */ row) => [row.id, [row.records, row.step, row.state]]);
    answers(true);
    told(Object.fromEntries(news));
  } catch {
    answers(false);
  }
  setTimeout(() => poll(told, answers), 2000);
}
