#!/usr/bin/env python3
import pty, select, signal, subprocess, time
from help_cli import *


class Terminal:
    """weft chat on a terminal of its own."""

    def __init__(self, *args):
        try: self.master, slave = pty.openpty()
        except OSError as e: raise Skip(f"no terminals here: {e}")
        self.p = subprocess.Popen([WEFT, "chat", TINY, *args], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                  env=dict(os.environ, TERM="xterm"), preexec_fn=self.take_terminal)
        os.close(slave)
        self.seen = b""

    @staticmethod
    def take_terminal():
        import fcntl, termios
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def wait_for(self, text, seconds=60):
        end = time.time() + seconds
        while text not in self.seen:
            assert time.time() < end, f"{text!r} did not come: {self.seen[-400:]!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                try: self.seen += os.read(self.master, 65536)
                except OSError: raise AssertionError(f"it ended before {text!r}: {self.seen[-400:]!r}")
        got, _, self.seen = self.seen.partition(text)
        return got + text

    def type(self, text): os.write(self.master, text)

    def end(self, keys):
        """Types keys until it ends: what is typed between a prompt and the terminal's change of mode may be lost."""
        end, typed = time.time() + 30, 0
        while self.p.poll() is None and time.time() < end:
            if time.time() > typed + 1:
                self.type(keys)
                typed = time.time()
            try:
                if select.select([self.master], [], [], 0.1)[0]: self.seen += os.read(self.master, 65536)
            except OSError: break
        code = self.p.wait(timeout=30)
        os.close(self.master)
        return code


@test
def a_conversation_remembers_what_was_said():
    text = "My name is Milo and I live in Prague.\nWhere do I live?\n"
    said = good("chat", TINY, "--no-thinking", "--temperature", "0", input=text.encode()).decode()
    equal(said.splitlines()[-1], "You live in Prague.")
    other = good("chat", TINY, "--no-thinking", "--temperature", "0", input=text.replace("\nW", "\n/new\nW").encode()).decode()
    assert "You live in Prague." not in other, other


@test
def on_a_terminal_lines_are_edited_and_thinking_is_dimmed():
    t = Terminal("--temperature", "0")
    t.wait_for(b"> ")
    t.type(b"/nothink\r")
    t.wait_for(b"> ")
    t.type(b"Who are yox\x7fu?\r")
    t.wait_for(b"I am a very small test model with the shape of a big one.")
    t.wait_for(b"> ")
    t.type(b"/think\r")
    t.wait_for(b"> ")
    t.type(b"/new\r")
    t.wait_for(b"> ")
    t.type(b"100+866=?\r")
    thinking = t.wait_for(b"\x1b[0m")
    assert b"\x1b[2m" in thinking and b"write 6, carry 0" in thinking, thinking
    t.wait_for(b"966")
    t.wait_for(b"> ")
    t.type(b"\x1b[A\r")  # the line before, from the history
    t.wait_for(b"\x1b[0m")
    t.wait_for(b"966")
    t.wait_for(b"> ")
    equal(t.end(b"\x04"), 0)


@test
def ctrl_d_ends_it_also_after_one_that_came_between_two_modes():
    t = Terminal()
    t.wait_for(b"> ")
    time.sleep(0.5)
    t.type(b"\x00")  # what a terminal makes of Ctrl-D before the editor takes over
    equal(t.end(b"\x04"), 0)
    t = Terminal("--no-thinking", "--temperature", "0")
    t.wait_for(b"> ")
    t.type(b"Who are you?\r")
    t.wait_for(b"I am")
    t.type(b"\x04")
    t.wait_for(b"> ")
    equal(t.end(b"\x04"), 0)


@test
def ctrl_c_stops_the_answer_and_not_the_program():
    t = Terminal("--no-thinking", "--temperature", "1.9", "--logit-bias", "12002=-1000,12000=-1000", "--seed", "3")
    t.wait_for(b"> ")
    t.type(b"Tell me a story.\r")
    t.wait_for(b"story.")
    time.sleep(1.5)
    t.type(b"\x03")
    t.wait_for(b"^C")  # what came before it may look like a prompt
    assert b"weft:" not in t.wait_for(b"> ")
    t.type(b"\x03")  # at the prompt it throws the line away, at most; what is typed meanwhile goes with it
    equal(t.end(b"/quit\r"), 0)


if __name__ == "__main__": main()
