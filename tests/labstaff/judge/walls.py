# ruff: noqa: SIM905 — long lists of names are read best as words
"""What code in a cell tries when no rule about names keeps it from trying. Each try is bounded by itself."""

TRIES = '''
import ctypes, fcntl, mmap, os, resource, signal, socket, threading

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def tried(name):
    """What came of a try: "done" where it worked, otherwise how it was refused."""
    try:
        result = globals()[name]()
    except BaseException as error:
        return f"{type(error).__name__}"
    return "done" if result is None else str(result)


def raw(number, *arguments):
    """A system call by its number on x86-64."""
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


# other processes

def kill_parent(): os.kill(os.getppid(), 0)
def kill_everybody(): os.kill(-1, 0)
def kill_the_first_hundred():
    for pid in range(2, 100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        return
    raise ProcessLookupError
def limits_of_parent(): resource.prlimit(2, resource.RLIMIT_NOFILE, (0, 0))
def limits_of_the_first(): raw(302, 1, 7, bytes(16), None)
def limits_of_itself_raised(): resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))
def owner_of_a_pipe():
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())
def owner_of_the_channel():
    for descriptor in range(3, 30):
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETOWN, 1)
        except OSError as error:
            if error.errno == 9:
                continue
            raise
        return
def signal_of_a_pipe(): fcntl.fcntl(0, 10, signal.SIGKILL)
def owner_by_ioctl(): fcntl.ioctl(0, 0x8901, (1).to_bytes(4, "little"))
def trace(): raw(101, 0, 0, 0, 0)
def descriptor_of_another(): os.pidfd_open(os.getppid())
def by_queue(): raw(129, 1, 9, bytes(128))
def fork(): os._exit(0) if os.fork() == 0 else None
def fork_by_clone(): raw(56, 17, 0, 0, 0, 0)
def fork_by_clone3(): raw(435, bytes(88), 88)
def fork_by_x32(): raw(0x40000000 | 57)
def program(): os.execv("/usr/bin/true", ["true"])
def program_by_descriptor(): raw(322, 0, b"", None, None, 0x1000)
def program_by_spawn(): os.posix_spawn("/usr/bin/true", ["true"], {})

# powers

def root():
    os.setuid(0)
def namespace(): raw(272, 0x10000000)
def namespace_of_mounts(): raw(272, 0x20000)
def namespace_by_clone(): raw(56, 0x10000000 | 0x10000 | 0x800 | 0x100, 0, 0, 0, 0)
def mount(): raw(165, b"none", b"/tmp", b"tmpfs", 0, None)
def unmount(): raw(166, b"/tmp", 2)
def change_root(): os.chroot("/tmp")
def who(): return "root" if 0 in (os.getuid(), os.getgid(), os.geteuid()) else "somebody"
def powers():
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    return "refused" if LIBC.capget(header, sets) else str(sum(sets))
def rings(): raw(425, 8, bytes(120))
def keys(): raw(250, 0, 0)
def userfault(): raw(323, 0)
def kernel_program(): raw(321, 0, bytes(64), 64)

# files

def numbers_of_processes(): return str([name for name in os.listdir("/proc") if name != "cpuinfo"])
def core_pattern(): open("/proc/sys/kernel/core_pattern", "w")
def out_of_memory_score(): open("/proc/self/oom_score_adj", "w")
def memory_of_the_first(): os.open("/proc/1/mem", os.O_RDWR)
def devices(): return str(sorted(os.listdir("/dev")))
def shared_memory_folder(): open("/dev/shm/x", "w")
def root_folder(): open("/x", "w")
def judge_folder(): open("/judge/labstaff/judge/server.py", "a")
def packages(): open(os.__file__, "a")
def kept_bytecode(): open(os.path.join(os.path.dirname(os.__file__), "__pycache__", "x.pyc"), "wb")
def own_bytecode(): os.mkdir("/judge/labstaff/judge/__pycache__")
def locale_of_the_machine(): open("/usr/lib/locale/C.utf8/LC_CTYPE", "r+b")
def priority_of_others(): os.setpriority(os.PRIO_USER, 0, 19)
def own_group(): os.setpgid(0, 0)
def own_session(): os.setsid()
def profile_of_everybody(): raw(298, bytes(128), -1, 0, -1, 0)
def names_of_the_host(): socket.sethostname("x")
def clock(): raw(227, 0, bytes(16))
def passwords(): return open("/etc/passwd").read()
def leave_a_file():
    with open("/scratch/left", "w") as file:
        file.write("left")
def find_the_file(): return str(os.listdir("/scratch"))
def temporary_folder(): open("/tmp/x", "w")
def fill_scratch():
    """At most 64 MiB."""
    n_written = 0
    try:
        for number in range(8):
            with open(f"/scratch/{number}", "wb") as file:
                for _ in range(8):
                    n_written += file.write(bytes(1 << 20))
    except OSError:
        pass
    return "little" if n_written <= 17 << 20 else str(n_written)

# memory that nobody counts: at most 64 MiB each

def shared_mapping(): mmap.mmap(-1, 64 << 20)
def shared_mapping_by_call(): raw(9, None, 64 << 20, 3, 0x21, -1, 0)
def growing_stack(): raw(9, None, 64 << 20, 3, 0x122, -1, 0)
def huge_pages(): raw(9, None, 64 << 20, 3, 0x40022, -1, 0)
def file_in_memory(): os.memfd_create("x")
def file_in_memory_by_number(): raw(319, b"x", 0)
def segment(): raw(29, 0, 64 << 20, 0o1600)
def secret_memory(): raw(447, 0)
def pipe(): os.pipe()
def sockets(): socket.socketpair()
def queue_of_messages(): raw(240, b"/x", 0o102, 0o600, None)
def counted(): return len(bytearray(300 << 20))

# threads: at most 200

def threads():
    over, made = threading.Event(), 0
    try:
        for _ in range(200):
            threading.Thread(target=over.wait, daemon=True).start()
            made += 1
    except RuntimeError:
        pass
    over.set()
    return "few" if made <= 64 else str(made)
def one_thread():
    seen = []
    thread = threading.Thread(target=seen.append, args=(1,))
    thread.start()
    thread.join()
    return str(seen)
def network(): socket.socket()
def network_by_number(): raw(41, 2, 1, 0)
def environment(): return repr(sorted(set(os.environ) - {"LC_CTYPE", "PWD"}))

# what a cell does at its end

def ends(): os._exit(3)
def never_ends():
    while True:
        pass
def too_many_parts(): return [None] * 1_000_000
def too_much_text(): return "x" * (5 << 20)
def listed(path): return tried_with(os.listdir, path)
def written(path): return tried_with(open, path, "w")
def tried_with(function, *arguments):
    try:
        return str(function(*arguments))
    except BaseException as error:
        return type(error).__name__
'''

REFUSED = (
    "kill_parent kill_everybody kill_the_first_hundred limits_of_parent limits_of_the_first limits_of_itself_raised "
    "owner_of_a_pipe owner_of_the_channel signal_of_a_pipe owner_by_ioctl trace descriptor_of_another by_queue fork "
    "fork_by_clone fork_by_clone3 fork_by_x32 program program_by_descriptor program_by_spawn root namespace "
    "namespace_of_mounts namespace_by_clone mount unmount change_root rings keys userfault kernel_program core_pattern "
    "out_of_memory_score memory_of_the_first shared_memory_folder root_folder judge_folder packages passwords "
    "temporary_folder kept_bytecode own_bytecode locale_of_the_machine priority_of_others own_group own_session "
    "profile_of_everybody names_of_the_host clock "
    "shared_mapping shared_mapping_by_call growing_stack huge_pages file_in_memory file_in_memory_by_number segment "
    "secret_memory pipe sockets queue_of_messages counted network network_by_number"
).split()
"""Tries that must be refused by an exception."""

GIVES = {
    "who": "somebody",
    "powers": ("0", "refused"),
    "numbers_of_processes": "[]",
    "devices": "['null', 'random', 'urandom', 'zero']",
    "fill_scratch": "little",
    "threads": "few",
    "one_thread": "[1]",
    "find_the_file": "[]",
}
"""Tries that must give this."""
