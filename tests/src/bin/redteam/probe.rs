//! A probe in a sandbox of its own, with a neighbour and everything that must hold after an attack.

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::arena::Arena;
use lodge_tests::prober;
use lodge_tests::redteam::{Expect, Probe, Program};
use lodge_tests::room::Ran;

/// Tries it; an error says what was wrong, with it or after it.
pub(crate) async fn run(probe: &Probe) -> Result<()> {
    let arena = Arena::with_limits(probe.bounds.limits()).await?;
    let ran = arena.while_others_are_fine(attack(&arena, probe)).await?;
    comes_to(&ran, probe.expect)?;
    arena.check().await
}

/// Whether it comes to what it must with these protections switched off. What it did to the host's rest is not looked at.
pub(crate) async fn holds_without(protections: &str, probe: &Probe) -> Result<bool> {
    let arena = Arena::weakened(protections, probe.bounds.limits()).await?;
    let ran = attack(&arena, probe).await?;
    Ok(comes_to(&ran, probe.expect).is_ok())
}

async fn attack(arena: &Arena, probe: &Probe) -> Result<Ran> {
    match probe.program {
        Program::Shell(script) => arena.attack(script).await,
        Program::Python(body) => arena.attack_python(&prober::program(body)).await,
    }
}

fn comes_to(ran: &Ran, expected: Expect) -> Result<()> {
    match expected {
        Expect::Says(text) => said(ran.code(), &ran.text(), text).with_context(|| ran.story()),
        Expect::Answers(answers) => prober::expect(ran, answers),
        Expect::Ends(reason) => {
            let ended = ran.result.end_reason();
            if ended == pb::EndReason::Unspecified || ended != reason {
                bail!("it ended {ended:?}: {}", ran.story());
            }
            Ok(())
        }
    }
}

/// A shell's last command may say no by its exit code: what it wrote is what counts.
fn said(code: i32, text: &str, expected: &str) -> Result<()> {
    ensure!(code < 2, "exit code {code}");
    ensure!(text == expected, "it said {text:?}");
    Ok(())
}
