// @ts-check
// What is chosen in a component and told to the host: shown at once, sent when no other change
// follows.

const COMMIT_AFTER = 250; // milliseconds without another change
const ANSWER_WITHIN = 2000; // milliseconds that a link waits for the host

/** The state of a component, and the host's answers to it. */
export class Commits {
  /** @type {any} */ state = null;
  version = 0;
  answered = 0;
  /** @type {number | undefined} */ timer;
  /** @type {HTMLElement | null} */ link = null;

  /** Take a message of the host; its state only where nothing newer was chosen here.
   * @param {any} data @param {(event: string, commit: any) => void} send */
  receive({ session, version, state }, send) {
    this.send = send;
    // Versions of another session, as after a restart of the server, say nothing of this one's.
    if (!this.state || session !== this.session || version >= this.version) {
      this.session = session;
      this.version = version;
      this.state = { ...state };
    } else if (!this.open) this.#later(); // it was closed before it had told the host
    this.answered = version;
    if (this.link && this.answered >= this.version) this.#follow();
    if (!this.open) document.addEventListener("click", this.leave, true);
    this.open = true;
  }

  close() {
    clearTimeout(this.timer);
    document.removeEventListener("click", this.leave, true);
    this.open = false;
  }

  /** @param {Record<string, unknown>} part of the state */
  change(part) {
    Object.assign(this.state, part);
    this.version += 1;
    this.#later();
  }

  /** Take what was chosen in another component, which tells the host.
   * @param {Commits} other @param {Record<string, unknown>} part of the state */
  follow(other, part) {
    Object.assign(this.state, part);
    this.version = other.version;
  }

  #later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#tell(), COMMIT_AFTER);
  }

  #tell() {
    clearTimeout(this.timer);
    this.send?.("commit", { ...this.state, version: this.version });
  }

  /** A link is followed once the host has answered to what was chosen here: the next page would
   * not know it. */
  leave = (/** @type {any} */ event) => {
    const link = event.target.closest?.("a[href]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (this.answered >= this.version) return;
    event.preventDefault();
    event.stopPropagation();
    this.link = link;
    this.#tell();
    setTimeout(() => this.#follow(), ANSWER_WITHIN);
  };

  #follow() {
    const { link } = this;
    this.link = null;
    this.answered = this.version;
    link?.click();
  }
}
