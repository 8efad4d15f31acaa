//! The one tool that an agent gets: run a command in its own persistent sandbox.
//!
//! `agent_tool --schema` prints the tool's description for the model. Without arguments it reads one call's input as JSON
//! on standard input, for instance `{"command": "pytest -q", "timeout_seconds": 300}`, runs it in the sandbox named by
//! LODGE_SANDBOX (else `agent`), and prints the result as JSON. A command that fails is a result, and so is an error:
//! the model reads both.
//!
//! Credentials are not the model's: they are fetched anew for each call by a callback, reach that one run as secrets,
//! and are masked in what comes back. A real agent asks its vault for a short-lived token there.

use std::io::Read as _;
use std::process::ExitCode;
use std::time::Duration;

use lodge_client::{Captured, Client, Error, Output, Run, Sandbox, Secret};
use serde::Deserialize;
use serde_json::{Value, json};

const DEFAULT_TIMEOUT_SECONDS: u64 = 120;
/// Below the quarter of an hour after which agent frameworks give up on a tool call.
const MAX_TIMEOUT_SECONDS: u64 = 750;
/// Bytes of each stream that the model gets to see: the beginning and the end, which is where errors are.
const OUTPUT_BUDGET_BYTES: u64 = 30_000;
/// Taken from this process's environment for each call, if it is set.
const CREDENTIAL: &str = "GITHUB_TOKEN";

/// A call's input, as the model wrote it.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Call {
    command: String,
    workdir: Option<String>,
    timeout_seconds: Option<u64>,
}

impl Call {
    /// Reads and checks it. The error is a sentence for the model, so that it can do better.
    fn parse(input: &str) -> Result<Self, String> {
        let call: Self = serde_json::from_str(input).map_err(|e| format!("invalid input: {e}"))?;
        match call.timeout_seconds {
            Some(0) => Err("timeout_seconds must be at least 1".into()),
            Some(seconds) if seconds > MAX_TIMEOUT_SECONDS => Err(format!(
                "timeout_seconds must be at most {MAX_TIMEOUT_SECONDS}, not {seconds}"
            )),
            _ => Ok(call),
        }
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS))
    }
}

/// The tool: a sandbox, and where each call's environment comes from.
struct AgentTool<F> {
    sandbox: Sandbox,
    environment: F,
}

impl<F: AsyncFn() -> Vec<(String, Secret)>> AgentTool<F> {
    /// Runs one call and returns what the model gets.
    async fn handle(&self, input: &str) -> Value {
        let call = match Call::parse(input) {
            Ok(call) => call,
            Err(problem) => return json!({ "error": problem }),
        };
        let mut run: Run = self
            .sandbox
            .run(&call.command)
            .timeout(call.timeout())
            .max_output(OUTPUT_BUDGET_BYTES)
            // An agent that gave up on the call does not want the command to go on.
            .cancel_on_disconnect();
        if let Some(workdir) = &call.workdir {
            run = run.cwd(workdir);
        }
        for (name, value) in (self.environment)().await {
            run = run.secret(name, value);
        }
        match run.await {
            Ok(output) => describe(&output),
            Err(error) => describe_error(&error),
        }
    }
}

fn schema() -> Value {
    json!({
        "name": "run",
        "description": "Runs a shell command in your own Linux sandbox. Files stay between calls; shell variables, \
            the working directory and background jobs that hold the terminal do not. The result has the exit code, \
            the reason why the command ended, and its output, of which the middle is left out if it is long.",
        "input_schema": {
            "type": "object",
            "properties": {
                "command": { "type": "string", "description": "A script for bash." },
                "workdir": {
                    "type": "string",
                    "description": "Absolute path to run it in; the home directory if left out."
                },
                "timeout_seconds": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_TIMEOUT_SECONDS,
                    "default": DEFAULT_TIMEOUT_SECONDS,
                    "description": "The command and all that it started are ended after this time."
                }
            },
            "required": ["command"],
            "additionalProperties": false
        }
    })
}

fn describe(output: &Output) -> Value {
    let mut result = json!({
        "exit_code": output.exit_code(),
        "end_reason": output.end_reason().as_str(),
        "stdout": output.stdout.text().as_str(),
        "stderr": output.stderr.text().as_str(),
    });
    // Only what is worth a token.
    let notes = [
        (
            "message",
            json!(output.outcome.message),
            !output.outcome.message.is_empty(),
        ),
        (
            "processes_left_running",
            json!(output.outcome.left_running),
            output.outcome.left_running > 0,
        ),
        (
            "stdout_bytes",
            json!(output.stdout.total_bytes),
            Captured::truncated(&output.stdout),
        ),
        (
            "stderr_bytes",
            json!(output.stderr.total_bytes),
            Captured::truncated(&output.stderr),
        ),
    ];
    for (name, value, worthwhile) in notes {
        if worthwhile {
            result[name] = value;
        }
    }
    result
}

fn describe_error(error: &Error) -> Value {
    let mut result = json!({ "error": error.to_string() });
    if let Some(hint) = error.hint() {
        result["hint"] = json!(hint);
    }
    result
}

/// What the next run is to have in its environment. Called for each call, so that nothing grows old.
async fn fresh_environment() -> Vec<(String, Secret)> {
    let credential = std::env::var(CREDENTIAL).ok();
    credential
        .map(|value| (CREDENTIAL.to_owned(), Secret::from(value)))
        .into_iter()
        .collect()
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the result is this program's output")]
async fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("--schema") {
        println!("{:#}", schema());
        return ExitCode::SUCCESS;
    }
    let mut input = String::new();
    if let Err(error) = std::io::stdin().read_to_string(&mut input) {
        println!(
            "{:#}",
            json!({ "error": format!("cannot read the call: {error}") })
        );
        return ExitCode::FAILURE;
    }
    // Where no daemon answers, the model gets that as the result, in the same form as any other failure.
    match connect().await {
        Ok(sandbox) => {
            let tool = AgentTool {
                sandbox,
                environment: fresh_environment,
            };
            println!("{:#}", tool.handle(&input).await);
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{:#}", describe_error(&error));
            ExitCode::FAILURE
        }
    }
}

async fn connect() -> Result<Sandbox, Error> {
    let name = std::env::var("LODGE_SANDBOX").unwrap_or_else(|_| "agent".to_owned());
    Client::from_env().await?.sandbox(name).await
}

#[cfg(test)]
#[path = "../tests/fake/mod.rs"]
mod fake;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_120_seconds_if_left_out_and_between_1_and_750() {
        let timeout = |seconds: &str| {
            let input = format!(r#"{{"command": "true"{seconds}}}"#);
            Call::parse(&input).map(|call| call.timeout().as_secs())
        };
        assert_eq!(timeout(""), Ok(120));
        assert_eq!(timeout(r#", "timeout_seconds": 1"#), Ok(1));
        assert_eq!(timeout(r#", "timeout_seconds": 750"#), Ok(750));
        for outside in ["0", "751", "-1", "1.5", "1e300", "\"60\""] {
            let problem = timeout(&format!(r#", "timeout_seconds": {outside}"#));
            assert!(problem.is_err(), "{outside}: {problem:?}");
        }
    }

    #[test]
    fn unknown_and_missing_fields_are_refused() {
        assert!(Call::parse(r#"{"command": "true", "env": {}}"#).is_err());
        assert!(Call::parse(r#"{"workdir": "/"}"#).is_err());
    }

    #[test]
    fn the_schema_says_what_the_handler_enforces() {
        let timeout = &schema()["input_schema"]["properties"]["timeout_seconds"];
        assert_eq!(
            (
                &timeout["minimum"],
                &timeout["maximum"],
                &timeout["default"]
            ),
            (&json!(1), &json!(750), &json!(120))
        );
    }

    #[tokio::test]
    async fn each_call_gets_an_environment_of_its_own() {
        let daemon = fake::Daemon::start().await;
        let client = Client::connect(daemon.endpoint()).await.unwrap();
        let calls = std::cell::Cell::new(0);
        let environment = async || {
            calls.set(calls.get() + 1);
            vec![(
                "TOKEN".to_owned(),
                Secret::from(format!("token-{}", calls.get())),
            )]
        };
        let tool = AgentTool {
            sandbox: client.sandbox("a").await.unwrap(),
            environment,
        };
        for expected in ["token-1", "token-2"] {
            let result = tool.handle(r#"{"command": "printf $TOKEN; exit 3"}"#).await;
            assert_eq!(result["stdout"], expected);
            assert_eq!(
                (&result["exit_code"], &result["end_reason"]),
                (&json!(3), &json!("EXITED"))
            );
        }
        let refused = tool.handle(r#"{"command": "fake:refuse"}"#).await;
        assert_eq!(
            refused,
            json!({ "error": "that is too much", "hint": "ask for less" })
        );
    }
}
