//! Case K1: acquiring is get-or-create, and race-free.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::Api;
use lodge_tests::daemon::Daemon;
use tokio::task::JoinSet;

/// Fifty parallel calls for one name, each on a connection of its own: one sandbox, fifty successes, exactly one of
/// which says that it created it.
#[tokio::test(flavor = "multi_thread")]
async fn case_k1_fifty_parallel_acquires_make_one_sandbox() -> Result<()> {
    let daemon = Daemon::new().await?;
    let socket = daemon.slot().home().join("lodged.sock");
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let api = Api::new(&socket)?;
        calls.spawn(async move {
            let request = pb::AcquireRequest {
                name: "shared".into(),
                ..Default::default()
            };
            api.try_acquire(request).await
        });
    }
    let mut created = 0;
    let mut ids = BTreeSet::new();
    while let Some(call) = calls.join_next().await {
        let reply = call??;
        created += u32::from(reply.created);
        ids.insert(reply.sandbox.context("a sandbox")?.id);
    }
    ensure!(
        created == 1 && ids.len() == 1,
        "created {created} times, ids {ids:?}"
    );
    ensure!(daemon.api().list().await?.len() == 1);
    Ok(())
}
