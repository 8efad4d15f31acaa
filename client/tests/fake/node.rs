// The host: its disk, in two pages, and a pool that grows.

use lodge_proto::v1 as pb;
use pb::node_service_server::NodeService;
use tonic::{Request, Response, Status};

use super::{Answer, Fake, refused};

#[tonic::async_trait]
impl NodeService for Fake {
    async fn info(&self, _: Request<pb::InfoRequest>) -> Answer<pb::InfoResponse> {
        Err(Status::unimplemented("not in the fake"))
    }

    async fn doctor(&self, _: Request<pb::DoctorRequest>) -> Answer<pb::DoctorResponse> {
        Err(Status::unimplemented("not in the fake"))
    }

    /// Two pages, so that a client that forgets the second one is caught.
    async fn disk(&self, request: Request<pb::DiskRequest>) -> Answer<pb::DiskResponse> {
        let (sandbox, next) = match request.into_inner().page_token.as_str() {
            "" => (
                pb::SandboxDisk {
                    name: "first".into(),
                    state: pb::SandboxState::Running.into(),
                    used_bytes: Some(3 << 20),
                    limit_bytes: Some(10 << 30),
                    inodes: Some(5),
                    limit_inodes: Some(4096),
                    ..Default::default()
                },
                "more",
            ),
            _ => (
                pb::SandboxDisk {
                    name: "second".into(),
                    state: pb::SandboxState::Stopped.into(),
                    ..Default::default()
                },
                "",
            ),
        };
        let grow = pb::StorageAbility {
            name: "grow".into(),
            reason: "there is no pool".into(),
            ..Default::default()
        };
        Ok(Response::new(pb::DiskResponse {
            host: Some(host_disk(100 << 30)),
            images_bytes: 300 << 20,
            logs_bytes: 2048,
            abilities: vec![grow],
            sandboxes: vec![sandbox],
            next_page_token: next.into(),
        }))
    }

    async fn grow_pool(
        &self,
        request: Request<pb::GrowPoolRequest>,
    ) -> Answer<pb::GrowPoolResponse> {
        match request.into_inner().bytes {
            bytes if bytes < 100 << 30 => {
                Err(refused(tonic::Code::InvalidArgument, "POOL_TOO_SMALL"))
            }
            bytes => Ok(Response::new(pb::GrowPoolResponse {
                host: Some(host_disk(bytes)),
            })),
        }
    }
}

fn host_disk(size_bytes: u64) -> pb::HostDisk {
    pb::HostDisk {
        driver: "fake".into(),
        path: "/pool\u{1b}[2J".into(),
        size_bytes,
        used_bytes: 40 << 30,
        host_free_bytes: 60 << 30,
        reserve_bytes: 1 << 30,
        being_removed: 2,
    }
}
