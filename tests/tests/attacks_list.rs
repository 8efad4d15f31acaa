//! Attack A17: listings that are asked in bad faith. Ten thousand sandboxes and their pages are tested where no kernel is
//! needed, in `daemon/src/sandbox/view_tests.rs`.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use lodge_proto::v1::{self as pb, SandboxState};
use lodge_tests::api::Api;
use lodge_tests::daemon::Daemon;
use tonic::{Code, Status};

async fn list(api: &Api, request: pb::ListSandboxesRequest) -> Result<Vec<String>, Status> {
    let page = api.sandboxes().list(request).await?.into_inner();
    Ok(page.sandboxes.into_iter().map(|s| s.name).collect())
}

/// A token that a listing did not give is refused, or begins the next page elsewhere in the caller's own list. Sizes and
/// filters that make no sense are refused.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a17_forged_page_tokens_give_nothing_that_the_list_does_not() -> Result<()> {
    let daemon = Daemon::new().await?;
    let api = daemon.api();
    for name in ["a", "b", "c"] {
        api.room(name).await?;
    }
    let page = |page_token: &str| pb::ListSandboxesRequest {
        page_token: page_token.into(),
        ..Default::default()
    };
    let long = "a".repeat(1 << 20);
    for forged in [
        "x",
        ":",
        "aaaaaaaaaaaaaaaaaaaa:",
        "aaaaaaaaaaaaaaaaaaaa:../b",
        "\u{0}:\u{0}",
        &long,
    ] {
        let refused = list(api, page(forged)).await;
        ensure!(
            refused.is_err_and(|status| status.code() == Code::InvalidArgument),
            "{forged:.40}"
        );
    }
    let elsewhere = list(api, page("zzzzzzzzzzzzzzzzzzzz:b")).await?;
    ensure!(elsewhere == ["c"], "{elsewhere:?}");
    ensure!(list(api, page("aaaaaaaaaaaaaaaaaaaa:zz")).await?.is_empty());
    for page_size in [-1, 1001, i32::MIN, i32::MAX] {
        let request = pb::ListSandboxesRequest {
            page_size,
            ..page("")
        };
        let refused = list(api, request).await;
        ensure!(
            refused.is_err_and(|status| status.code() == Code::InvalidArgument),
            "{page_size}"
        );
    }
    for states in [vec![0], vec![99], vec![2, -1]] {
        let request = pb::ListSandboxesRequest { states, ..page("") };
        ensure!(
            list(api, request)
                .await
                .is_err_and(|status| status.code() == Code::InvalidArgument)
        );
    }
    let labels = (0..1000).map(|n| (n.to_string(), String::new())).collect();
    let request = pb::ListSandboxesRequest { labels, ..page("") };
    ensure!(
        list(api, request)
            .await
            .is_err_and(|status| status.code() == Code::InvalidArgument)
    );
    Ok(())
}

/// A filter by labels and states holds on every page, and pages of one give each sandbox once.
#[tokio::test(flavor = "multi_thread")]
async fn a_listing_keeps_to_its_filter_on_every_page() -> Result<()> {
    let daemon = Daemon::new().await?;
    let api = daemon.api();
    let red: HashMap<String, String> = [("team".into(), "red".into())].into();
    for name in ["r1", "b1", "r2", "b2", "r3"] {
        let labels = if name.starts_with('r') {
            red.clone()
        } else {
            HashMap::new()
        };
        let request = pb::AcquireRequest {
            name: name.into(),
            labels,
            ..Default::default()
        };
        api.acquire(request).await?;
    }
    let mut request = pb::ListSandboxesRequest {
        page_size: 1,
        labels: red.clone(),
        ..Default::default()
    };
    let mut names = Vec::new();
    loop {
        let page = api.sandboxes().list(request.clone()).await?.into_inner();
        ensure!(page.sandboxes.len() <= 1);
        names.extend(page.sandboxes.into_iter().map(|s| s.name));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    ensure!(names == ["r1", "r2", "r3"], "{names:?}");
    let stopped = api.room("r2").await?;
    stopped.stop().await?;
    let of_state = |state: SandboxState| pb::ListSandboxesRequest {
        labels: red.clone(),
        states: vec![state.into()],
        ..Default::default()
    };
    ensure!(list(api, of_state(SandboxState::Stopped)).await? == ["r2"]);
    ensure!(list(api, of_state(SandboxState::Running)).await? == ["r1", "r3"]);
    Ok(())
}
