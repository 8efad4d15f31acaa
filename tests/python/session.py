"""A session with lodged from Python: one run, one streamed run, one error. Shown in README.md, run by tests/python.rs.

usage: session.py ENDPOINT   (unix:///run/lodge/lodged.sock); the stubs are found through PYTHONPATH
"""

import sys

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from lodge.v1 import exec_pb2, exec_pb2_grpc, sandbox_pb2, sandbox_pb2_grpc

# By itself grpcio names a unix socket's path as the HTTP/2 authority, which is not a valid one: say localhost.
channel = grpc.insecure_channel(sys.argv[1], options=[("grpc.default_authority", "localhost")])
sandboxes = sandbox_pb2_grpc.SandboxServiceStub(channel)
commands = exec_pb2_grpc.ExecServiceStub(channel)

# Get the sandbox of this name, or create it.
sandboxes.Acquire(sandbox_pb2.AcquireRequest(name="from-python"))
me = sandbox_pb2.SandboxRef(name="from-python")

# One call, one answer.
answer = commands.Run(
    exec_pb2.RunRequest(
        spec=exec_pb2.RunSpec(
            sandbox=me,
            shell='echo "hello $WHO" > greeting; cat greeting; exit 3',
            env=[exec_pb2.EnvVar(name="WHO", value="python")],
        )
    )
)
print("run:", answer.stdout.head, answer.result.exit_code)

# The same as a stream: each chunk says which stream it belongs to and where in it.
spec = exec_pb2.RunSpec(sandbox=me, shell="cat greeting; echo oops >&2")
first = exec_pb2.StartRequest(spec=exec_pb2.StartSpec(run=spec))
for event in commands.Start(iter([first])):
    if event.HasField("output"):
        name = exec_pb2.Stream.Name(event.output.stream)
        print("stream:", name, event.output.offset, event.output.data)
    elif event.HasField("exited"):
        print("end:", exec_pb2.EndReason.Name(event.exited.end_reason), event.exited.exit_code)

# An error has a code for programs, a text for people, and a reason that stays the same over versions.
try:
    nowhere = sandbox_pb2.SandboxRef(name="no-such-sandbox")
    commands.Run(exec_pb2.RunRequest(spec=exec_pb2.RunSpec(sandbox=nowhere, shell="true")))
except grpc.RpcError as error:
    info = error_details_pb2.ErrorInfo()
    for detail in rpc_status.from_call(error).details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
    print("error:", error.code().name, info.domain, info.reason)

sandboxes.Delete(sandbox_pb2.DeleteSandboxRequest(sandbox=me))
