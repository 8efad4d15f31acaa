//! A command on its way: what to run, and how.
//!
//! Awaited, it is one unary call, unless its standard input is a reader or too large for one message: then it is a
//! streaming call whose output is cut to the same budget here. Every call has a name of its own, its request id: where the
//! connection breaks it is made again, and the command runs once all the same.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::io::Cursor;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use lodge_proto::v1 as pb;
use pb::run_spec::Command;
use pb::start_request::Message;
use tokio::io::AsyncRead;

use crate::attach::Origin;
use crate::client::Client;
use crate::collect::{DEFAULT_OUTPUT_BYTES, check_budget};
use crate::error::{Error, Result};
use crate::idle::ResumeMode;
use crate::outcome::Output;
use crate::reconnect::Tries;
use crate::sandbox::SandboxRef;
use crate::secret::Secret;
use crate::stream::{Begun, Have, Input, RunStream};
use crate::upload::{Reader, Upload};
use crate::wire::within;

/// Standard input up to this goes in one message with the command; a message may have 16 MiB, a script 8 MiB.
const INLINE_STDIN_BYTES: usize = 4 << 20;
/// The id of no sandbox: ids are random, of 100 bits and more.
const NO_SANDBOX: &str = "00000000000000000000";

/// A command to be run. Await it for its [`Output`], or call [`Run::stream`] for its events as they come.
#[must_use = "nothing runs until it is awaited"]
pub struct Run {
    client: Client,
    sandbox: SandboxRef,
    command: Command,
    env: Vec<(String, String)>,
    secrets: Vec<(String, Secret)>,
    cwd: String,
    user: String,
    stdin: Stdin,
    timeout: Option<Duration>,
    max_output: Option<u64>,
    cancel_on_disconnect: bool,
    resume: ResumeMode,
    request_id: Option<String>,
}

enum Stdin {
    Bytes(Bytes),
    Reader(Reader),
}

/// Whether standard input follows the first message.
#[derive(PartialEq, Eq)]
enum StdinOpen {
    No,
    Yes,
}

impl Run {
    pub(crate) fn shell(client: Client, sandbox: SandboxRef, script: String) -> Self {
        Self::new(client, sandbox, Command::Shell(script))
    }

    pub(crate) fn argv(client: Client, sandbox: SandboxRef, args: Vec<String>) -> Self {
        Self::new(client, sandbox, Command::Argv(pb::Argv { args }))
    }

    fn new(client: Client, sandbox: SandboxRef, command: Command) -> Self {
        Self {
            client,
            sandbox,
            command,
            env: Vec::new(),
            secrets: Vec::new(),
            cwd: String::new(),
            user: String::new(),
            stdin: Stdin::Bytes(Bytes::new()),
            timeout: None,
            max_output: None,
            cancel_on_disconnect: false,
            resume: ResumeMode::default(),
            request_id: None,
        }
    }

    /// A variable of this call alone. A name given twice is refused by the server.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Variables of this call alone.
    pub fn envs<I, K, V>(mut self, variables: I) -> Self
    where
        I: IntoIterator<Item = (K, V)>,
        K: Into<String>,
        V: Into<String>,
    {
        self.env
            .extend(variables.into_iter().map(|(k, v)| (k.into(), v.into())));
        self
    }

    /// A variable whose value (at least 4 bytes) is replaced by `«NAME»` in output and logs. A run that has one ends
    /// with all its processes.
    pub fn secret(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.secrets.push((name.into(), value.into()));
        self
    }

    /// What to do if the sandbox is frozen. By default it is thawed.
    pub fn resume(mut self, mode: ResumeMode) -> Self {
        self.resume = mode;
        self
    }

    /// Working directory, absolute. Without it the image's, else the user's home.
    pub fn cwd(mut self, cwd: impl Into<String>) -> Self {
        self.cwd = cwd.into();
        self
    }

    /// User name or uid, optionally `:group`. Without it the image's, else `user`, else root.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = user.into();
        self
    }

    /// Bytes for standard input, followed by its end. Without it standard input is /dev/null. Any size works.
    pub fn stdin(mut self, bytes: impl Into<Bytes>) -> Self {
        self.stdin = Stdin::Bytes(bytes.into());
        self
    }

    /// Standard input as it can be read. The run ends when the command ends, whether or not all was read.
    pub fn stdin_reader(mut self, reader: impl AsyncRead + Send + 'static) -> Self {
        self.stdin = Stdin::Reader(Box::pin(reader));
        self
    }

    /// How long it may run; zero means no limit. Without it the server's default, usually 120 s. At its end
    /// everything that the run started is ended, and the result says `TimedOut`. The call itself is given this time
    /// and a margin; with no limit or the server's default it has no deadline of its own.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Bytes kept of each stream when awaited: 1 MiB without it, 8 MiB at most. Not used by [`Run::stream`].
    pub fn max_output(mut self, bytes: u64) -> Self {
        self.max_output = Some(bytes);
        self
    }

    /// Ends the run if this client goes away: its future or stream is dropped, or the connection breaks. (Not if it is the
    /// daemon that goes: then the run goes on, and a stream attaches to it again, but no longer ends it when dropped.)
    pub fn cancel_on_disconnect(mut self) -> Self {
        self.cancel_on_disconnect = true;
        self
    }

    /// The caller's own name for this call, 1 to 128 bytes. A second call with the same one in the same sandbox starts
    /// nothing and gets the first one's run; one with another command is refused. Without it each call has a random one,
    /// so that it can be sent again when the connection breaks.
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }

    /// Starts it and returns its events as they come, uncut.
    ///
    /// # Errors
    /// [`Error::Api`] if the run was refused, so that nothing ran; those of the connection.
    pub async fn stream(mut self) -> Result<RunStream> {
        self.name_it()?;
        let deadline = self.deadline();
        let stream = match self.take_reader() {
            Some(reader) => {
                let starting = start_with(self.origin(), self.spec()?, reader);
                within(deadline, starting).await?
            }
            None => {
                let (client, spec) = (&self.client, self.spec()?);
                let mut tries = Tries::new(client.reconnect);
                let starting = tries.answer(|| start(client, spec.clone()));
                let begun = within(deadline, starting).await?;
                RunStream::new(self.origin(), begun, Have::default())
            }
        };
        Ok(stream.with_patience(deadline))
    }

    /// Asks the daemon whether it would take this call as it is, standard input aside. Nothing runs, no sandbox is needed.
    ///
    /// # Errors
    /// What the daemon has against it; those of the connection.
    pub async fn check(&self) -> Result<()> {
        // A daemon looks for the sandbox after it has looked at all else that a call says.
        let spec = pb::RunSpec {
            sandbox: Some(SandboxRef::Id(NO_SANDBOX.into()).to_wire()),
            stdin: Bytes::new(),
            ..self.spec()?
        };
        let mut tries = Tries::new(self.client.reconnect);
        let checked = tries.answer(|| run(&self.client, spec.clone())).await;
        match checked {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    async fn output(mut self) -> Result<Output> {
        // Before anything runs.
        let budget = self.max_output.unwrap_or(DEFAULT_OUTPUT_BYTES);
        check_budget(budget)?;
        let inline = matches!(&self.stdin, Stdin::Bytes(b) if b.len() <= INLINE_STDIN_BYTES);
        if !inline {
            return self.stream().await?.collect(budget).await;
        }
        self.name_it()?;
        let (client, spec) = (&self.client, self.spec()?);
        let mut tries = Tries::new(client.reconnect);
        let running = tries.answer(|| run(client, spec.clone()));
        Output::from_wire(within(self.deadline(), running).await?)
    }

    /// Gives the call a name, so that it can be made twice and runs once.
    fn name_it(&mut self) -> Result<()> {
        if self.request_id.is_none() {
            self.request_id = Some(random_id()?);
        }
        Ok(())
    }

    fn origin(&self) -> Origin {
        Origin {
            client: self.client.clone(),
            sandbox: self.sandbox.clone(),
        }
    }

    /// What has to be sent after the first message.
    fn take_reader(&mut self) -> Option<Reader> {
        match std::mem::replace(&mut self.stdin, Stdin::Bytes(Bytes::new())) {
            Stdin::Reader(reader) => Some(reader),
            Stdin::Bytes(bytes) if bytes.len() > INLINE_STDIN_BYTES => {
                Some(Box::pin(Cursor::new(bytes)))
            }
            bytes @ Stdin::Bytes(_) => {
                self.stdin = bytes;
                None
            }
        }
    }

    fn spec(&self) -> Result<pb::RunSpec> {
        let variable = |name: &str, value: &str| pb::EnvVar {
            name: name.into(),
            value: value.into(),
        };
        Ok(pb::RunSpec {
            sandbox: Some(self.sandbox.to_wire()),
            command: Some(self.command.clone()),
            env: self
                .env
                .iter()
                .map(|(name, value)| variable(name, value))
                .collect(),
            secret_env: self
                .secrets
                .iter()
                .map(|(n, v)| variable(n, v.expose()))
                .collect(),
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            stdin: match &self.stdin {
                Stdin::Bytes(bytes) => bytes.clone(),
                Stdin::Reader(_) => Bytes::new(),
            },
            timeout: self.timeout.map(timeout_on_wire).transpose()?,
            max_output_bytes: self.max_output.map(output_on_wire).transpose()?,
            cancel_on_disconnect: self.cancel_on_disconnect,
            resume: self.resume.to_wire(),
            request_id: self.request_id.clone().unwrap_or_default(),
        })
    }

    fn deadline(&self) -> Option<Duration> {
        let timeout = self.timeout.filter(|timeout| !timeout.is_zero())?;
        Some(self.client.run_deadline(timeout))
    }
}

/// One call for the result.
async fn run(client: &Client, spec: pb::RunSpec) -> Result<pb::RunResponse> {
    let request = pb::RunRequest { spec: Some(spec) };
    Ok(client.exec().run(request).await?.into_inner())
}

/// One call for the events, without input.
async fn start(client: &Client, spec: pb::RunSpec) -> Result<Begun> {
    let (upload, _) = Upload::new(first_message(spec, StdinOpen::No), None, input);
    Begun::from_wire(client.exec().start(upload).await?.into_inner()).await
}

/// The same with input. It cannot be made twice: a reader is read once.
async fn start_with(origin: Origin, spec: pb::RunSpec, reader: Reader) -> Result<RunStream> {
    let first = first_message(spec, StdinOpen::Yes);
    let (upload, mut failure) = Upload::new(first, Some(reader), input);
    let mut service = origin.client.exec();
    let begin = async { Begun::from_wire(service.start(upload).await?.into_inner()).await };
    let begun = failure.or(begin).await?;
    let stream = RunStream::new(origin, begun, Have::default());
    Ok(stream.with_input(failure, Input::OnItsWay))
}

fn first_message(run: pb::RunSpec, stdin: StdinOpen) -> pb::StartRequest {
    let spec = pb::StartSpec {
        run: Some(run),
        open_stdin: stdin == StdinOpen::Yes,
    };
    pb::StartRequest {
        message: Some(Message::Spec(spec)),
    }
}

fn input(bytes: Bytes) -> pb::StartRequest {
    pb::StartRequest {
        message: Some(Message::Stdin(bytes)),
    }
}

/// 128 random bits.
fn random_id() -> Result<String> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|_| Error::Argument {
        what: "request id",
        problem: "the operating system gave no random bytes for it",
    })?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bits)))
}

fn timeout_on_wire(timeout: Duration) -> Result<prost_types::Duration> {
    prost_types::Duration::try_from(timeout).map_err(|_| Error::Argument {
        what: "timeout",
        problem: "it is too long to be sent",
    })
}

fn output_on_wire(bytes: u64) -> Result<i64> {
    i64::try_from(bytes).map_err(|_| Error::Argument {
        what: "max_output",
        problem: "it is too large to be sent",
    })
}

impl IntoFuture for Run {
    type Output = Result<Output>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Output>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.output())
    }
}

// By hand: the values of variables may be secret even where the caller did not say so.
impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |variables: &[(String, String)]| -> Vec<String> {
            variables.iter().map(|(name, _)| name.clone()).collect()
        };
        f.debug_struct("Run")
            .field("sandbox", &self.sandbox)
            .field("command", &self.command)
            .field("env", &names(&self.env))
            .field("secrets", &self.secrets)
            .field("cwd", &self.cwd)
            .field("user", &self.user)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
