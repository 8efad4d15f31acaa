//! A session as an agent has it: the client crate drives some two hundred commands of every kind in one sandbox, with
//! a restart of the daemon in the middle, and a model of the files beside it says what each must answer.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use lodge_client::{Client, EndReason, Output, Sandbox};
use lodge_tests::daemon::Daemon;

/// Functions that the agent adds to its project, one after the other.
const ROUNDS: usize = 33;
/// The round in which the daemon is restarted.
const RESTART_AT: usize = 17;
/// Every so many rounds the agent makes a mistake, sees its tests fail, and mends it.
const MISTAKE_EVERY: usize = 4;

/// The session: the sandbox, what its files must hold, and how many commands were run.
struct Session {
    sandbox: Sandbox,
    files: BTreeMap<String, String>,
    commits: usize,
    commands: usize,
}

impl Session {
    /// Runs a command in the project's directory and checks its exit code.
    async fn run(&mut self, script: &str, code: i32) -> Result<Output> {
        let out = self.sandbox.run(script).cwd("/home/user/project").await;
        self.checked(script, code, out)
    }

    fn checked(
        &mut self,
        script: &str,
        code: i32,
        out: lodge_client::Result<Output>,
    ) -> Result<Output> {
        self.commands += 1;
        let out = out.with_context(|| script.to_owned())?;
        let fine = out.end_reason() == EndReason::Exited && out.exit_code() == code;
        ensure!(
            fine,
            "{script}: expected {code}, got {:?} {}: {}{}",
            out.end_reason(),
            out.exit_code(),
            out.stdout.text(),
            out.stderr.text()
        );
        Ok(out)
    }

    /// Runs a command and checks what it prints.
    async fn prints(&mut self, script: &str, expected: &str) -> Result<()> {
        let out = self.run(script, 0).await?;
        let text = out.stdout.text();
        ensure!(
            text.as_str().trim() == expected,
            "{script}: expected {expected:?}, got {:?}",
            text.as_str()
        );
        Ok(())
    }

    /// Writes a file by a here-document, as agents do.
    async fn write(&mut self, path: &str, content: &str) -> Result<()> {
        self.run(
            &format!("cat > {path} <<'END-OF-FILE'\n{content}END-OF-FILE"),
            0,
        )
        .await?;
        self.files.insert(path.to_owned(), content.to_owned());
        Ok(())
    }

    /// Writes a file through standard input.
    async fn pipe(&mut self, path: &str, content: &str) -> Result<()> {
        let script = format!("cat > {path}");
        let out = self
            .sandbox
            .run(&script)
            .cwd("/home/user/project")
            .stdin(content.to_owned())
            .await;
        self.checked(&script, 0, out)?;
        self.files.insert(path.to_owned(), content.to_owned());
        Ok(())
    }

    /// Edits a file with sed, and the model likewise.
    async fn replace(&mut self, path: &str, from: &str, to: &str) -> Result<()> {
        self.run(&format!("sed -i 's/{from}/{to}/' {path}"), 0)
            .await?;
        let content = self.files.get_mut(path).context("a file of the model")?;
        ensure!(content.contains(from), "the model's {path} lacks {from}");
        *content = content.replacen(from, to, 1);
        Ok(())
    }

    async fn commit(&mut self, message: &str) -> Result<()> {
        self.run(&format!("git add -A && git commit -q -m '{message}'"), 0)
            .await?;
        self.commits += 1;
        Ok(())
    }

    async fn begin(&mut self) -> Result<()> {
        let out = self
            .sandbox
            .run("mkdir project && cd project && git init -q -b main .")
            .await;
        self.checked("mkdir", 0, out)?;
        self.run(
            "git config user.name agent && git config user.email agent@example.org",
            0,
        )
        .await?;
        self.write(".gitignore", "__pycache__/\n").await?;
        self.run("mkdir calc tests", 0).await?;
        self.pipe("calc/__init__.py", "\"\"\"Numbers.\"\"\"\n")
            .await?;
        self.pipe("tests/__init__.py", "").await?;
        self.commit("begin").await
    }

    /// One round: a function and its test, a mistake now and then, a look around, a commit.
    async fn round(&mut self, n: usize) -> Result<()> {
        let (module, test) = (format!("calc/f{n}.py"), format!("tests/test_f{n}.py"));
        let mistaken = n.is_multiple_of(MISTAKE_EVERY);
        let operator = if mistaken { '-' } else { '+' };
        self.write(
            &module,
            &format!("def f{n}(x):\n    return x {operator} {n}\n"),
        )
        .await?;
        let mut text = String::from("import unittest\n");
        writeln!(
            text,
            "from calc.f{n} import f{n}\n\n\nclass Test(unittest.TestCase):"
        )?;
        writeln!(
            text,
            "    def test_it(self):\n        self.assertEqual(f{n}(1), {})",
            n + 1
        )?;
        self.write(&test, &text).await?;
        if mistaken {
            let failed = self.run("python3 -B -m unittest -q", 1).await?;
            ensure!(failed.stderr.text().as_str().contains(&format!(
                "{} != {}",
                1 - n as i64,
                n + 1
            )));
            self.prints(&format!("git status --short | grep -c f{n}.py"), "2")
                .await?;
            self.replace(&module, &format!("x - {n}"), &format!("x + {n}"))
                .await?;
        }
        let passed = self.run("python3 -B -m unittest -q", 0).await?;
        ensure!(
            passed
                .stderr
                .text()
                .as_str()
                .contains(&format!("Ran {} test", n)),
            "{}",
            passed.stderr.text()
        );
        self.prints(&format!("rg -l 'def f{n}\\b' calc"), &module)
            .await?;
        self.commit(&format!("add f{n}")).await
    }

    /// All files are as the model has them, and git agrees.
    async fn check_files(&mut self) -> Result<()> {
        for (path, content) in self.files.clone() {
            let out = self.run(&format!("cat {path}"), 0).await?;
            ensure!(
                out.stdout.bytes() == content.as_bytes(),
                "{path}: {:?}",
                out.stdout.text()
            );
        }
        let count = self.files.len();
        self.prints("git ls-files | wc -l", &count.to_string())
            .await?;
        self.prints("git status --porcelain", "").await?;
        let commits = self.commits;
        self.prints("git rev-list --count HEAD", &commits.to_string())
            .await?;
        self.run("git fsck --strict", 0).await.map(drop)
    }
}

/// Two hundred mixed commands with a restart in the middle: every exit code, every output and every file is right.
#[tokio::test(flavor = "multi_thread")]
async fn agent_session_of_two_hundred_commands() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let client = Client::connect(daemon.endpoint()).await?;
    let sandbox = client.sandbox("agent").await?;
    let mut session = Session {
        sandbox,
        files: BTreeMap::new(),
        commits: 0,
        commands: 0,
    };
    session.begin().await?;
    for n in 1..=ROUNDS {
        if n == RESTART_AT {
            daemon.restart()?;
        }
        session
            .round(n)
            .await
            .with_context(|| format!("round {n}"))?;
    }
    session.run("grep -rn nothing-like-this calc", 1).await?;
    session.run("cat missing", 1).await?;
    session.run("no-such-tool", 127).await?;
    session.run("test -d .git && exit 42", 42).await?;
    session.check_files().await?;
    ensure!(
        session.commands >= 200,
        "only {} commands",
        session.commands
    );
    Ok(())
}
