// @ts-check
// Send the choices made in a component to its host: they are shown at once, and sent when no other
// change follows.

const COMMIT_AFTER = 250; // milliseconds without another change
const ANSWER_WITHIN = 2000; // milliseconds that a link waits for the host

/** The state of a component, and its exchange with the host. */
export class Commits {
  /** @type {any} */ state = null;
  version = 0;
  answered = 0;
  /** @type {number | undefined} */ timer;
  /** @type {HTMLElement | null} */ link = null;

  /** Take a message of the host, and its state unless something newer was chosen here.
   * @param {any} data @param {(event: string, commit: any) => void} send */
  receive({ session, version, state }, send) {
    this.send = send;
    // After a restart of the server, versions belong to another session and cannot be compared.
    if (!this.state || session !== this.session || version >= this.version) {
      this.session = session;
      this.version = version;
      this.state = { ...state };
    } else if (!this.open) this.#later(); // it was closed before the host knew
    this.answered = version;
    if (this.link && this.answered >= this.version) this.#follow();
    if (!this.open) {
      document.addEventListener("click", this.leave, true);
      document.addEventListener("vitviz:reconnected", this.again);
    }
    this.open = true;
  }

  close() {
    this.#stop();
    document.removeEventListener("click", this.leave, true);
    document.removeEventListener("vitviz:reconnected", this.again);
    this.open = false;
  }

  /** Send again what the host missed while it could not be reached. */
  again = () => {
    if (this.answered < this.version) this.#tell();
  };

  /** @param {Record<string, unknown>} part of the state */
  change(part) {
    Object.assign(this.state, part);
    this.version += 1;
    this.#later();
  }

  /** Take the choice of another component, which sends it to the host.
   * @param {Commits} other @param {Record<string, unknown>} part of the state */
  follow(other, part) {
    Object.assign(this.state, part);
    this.version = other.version;
  }

  /** Whether a choice is not sent yet. */
  get waiting() {
    return this.timer !== undefined;
  }

  #stop() {
    clearTimeout(this.timer);
    this.timer = undefined;
  }

  #later() {
    this.#stop();
    this.timer = setTimeout(() => this.#tell(), COMMIT_AFTER);
  }

  #tell() {
    this.#stop();
    this.send?.("commit", { ...this.state, version: this.version });
  }

  /** Follow a link only after the host has answered to the last choice, which the next page would
   * not know. */
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
