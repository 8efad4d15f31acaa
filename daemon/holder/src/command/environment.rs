//! The environment of a command: the caller's, completed with what every program expects.

use std::ffi::CString;

use nix::errno::Errno;

use super::user::User;
use crate::protocol::{Cause, on};

/// PATH where nobody set one: with the sbin directories, since root's and users' tools are not told apart any more.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Adds PATH, HOME, USER, LOGNAME, SHELL and LANG where they are not set.
pub(super) fn complete(env: Vec<Vec<u8>>, user: &User) -> Result<Vec<CString>, Cause> {
    let mut complete: Vec<CString> = env
        .into_iter()
        .map(|variable| CString::new(variable).map_err(|_| on("variable")(Errno::EINVAL)))
        .collect::<Result<_, _>>()?;
    for (name, value) in [
        ("PATH", PATH),
        ("HOME", &user.home.to_string_lossy()),
        ("USER", &user.name),
        ("LOGNAME", &user.name),
        ("SHELL", &user.shell),
        ("LANG", "C.UTF-8"),
    ] {
        if value_of(&complete, name).is_none() {
            let variable = format!("{name}={value}");
            complete.push(CString::new(variable).map_err(|_| on(name)(Errno::EINVAL))?);
        }
    }
    Ok(complete)
}

/// Paths to try for a program: itself if it has a slash, else in each directory of PATH.
pub(super) fn candidates(name: &CString, env: &[CString]) -> Vec<CString> {
    if name.as_bytes().contains(&b'/') {
        return vec![name.clone()];
    }
    let path = value_of(env, "PATH").unwrap_or(PATH.as_bytes());
    let join = |dir: &[u8]| {
        // An empty entry means the working directory.
        let dir = if dir.is_empty() { b"." } else { dir };
        CString::new([dir, b"/", name.as_bytes()].concat()).ok()
    };
    path.split(|b| *b == b':').filter_map(join).collect()
}

fn value_of<'a>(env: &'a [CString], name: &str) -> Option<&'a [u8]> {
    env.iter().find_map(|variable| {
        variable
            .as_bytes()
            .strip_prefix(name.as_bytes())?
            .strip_prefix(b"=")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> User {
        User {
            uid: 1000,
            gid: 1000,
            groups: Vec::new(),
            name: "user".into(),
            home: c"/home/user".into(),
            shell: "/bin/bash".into(),
        }
    }

    #[test]
    fn what_is_set_stays_and_what_is_missing_comes() {
        let env =
            complete(vec![b"HOME=/x".to_vec(), b"PATHS=1".to_vec()], &user()).expect("no NUL");
        assert_eq!(value_of(&env, "HOME"), Some(&b"/x"[..]));
        assert_eq!(value_of(&env, "PATH"), Some(PATH.as_bytes()));
        assert_eq!(value_of(&env, "USER"), Some(&b"user"[..]));
        assert_eq!(env.len(), 7);
    }

    #[test]
    fn a_program_without_a_slash_is_looked_up_in_the_commands_own_path() {
        let env = [c"PATH=/a::/b".into()];
        let found = candidates(&c"x".into(), &env);
        assert_eq!(
            found,
            vec![CString::from(c"/a/x"), c"./x".into(), c"/b/x".into()]
        );
        assert_eq!(
            candidates(&c"./x".into(), &env),
            vec![CString::from(c"./x")]
        );
    }
}
