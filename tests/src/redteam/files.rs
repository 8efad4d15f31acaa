//! Files and archives.

use super::{Row, python, row};

const FILES: &str = "the transfer of files";
const SNAPSHOTS: &str = "snapshots";

pub(super) const ROWS: &[Row] = &[
    row("F01", "names that climb").star(),
    row("F02", "write through a link").star(),
    row("F04", "hard links out").star(),
    row("F05", "devices and unknown kinds").star(),
    row("F07", "headers that contradict themselves"),
    row("F08", "bombs").star(),
    row("F09", "bits and attributes with privilege"),
    row("F10", "a racer renames directories under a transfer")
        .star()
        .waits_for(FILES),
    row("F12", "mount points that move").star(),
    row("F13", "a transfer over what is in use").waits_for(FILES),
    row("F14", "libraries that a look-up of names would load")
        .star()
        .waits_for(FILES),
    row("F15", "tools that are not what they are called").star(),
    row("F16", "paths of every kind").waits_for(FILES),
    row("F18", "a transfer of what is being removed").waits_for(FILES),
    row("F20", "an archive brings the layout").star(),
    row("F21", "a stopped sandbox full of links").star(),
    row("F22", "files of the daemon below a sandbox's tree").star(),
    row("F23", "attributes of the overlay").star().probe(
        python(
            "
os.mkdir('/root/d')
for name in 'trusted.overlay.opaque trusted.overlay.redirect trusted.overlay.metacopy'.split():
    tell(name, lambda: os.setxattr('/root/d', name, b'y'))
",
            &[
                ("trusted.overlay.opaque", "EPERM|EOPNOTSUPP"),
                ("trusted.overlay.redirect", "EPERM|EOPNOTSUPP"),
                ("trusted.overlay.metacopy", "EPERM|EOPNOTSUPP"),
            ],
        )
        .harmless(),
    ),
    row("F24", "a snapshot in the middle of writes").waits_for(SNAPSHOTS),
    row("F25", "what a snapshot keeps of files").waits_for(SNAPSHOTS),
    row("F30", "transfers beyond the quota")
        .star()
        .waits_for(FILES),
    row("F40", "a hostile /etc/group"),
    row("F41", "a file that is cut short while it is read").waits_for(FILES),
    row("F50", "a repository with hooks").see(
        "SECURITY.md: neither daemon nor command runs a program of the sandbox's files on the host",
    ),
    row("F51", "what POSIX says of files").named(&["pjdfstest_ends_as_pinned"]),
];
