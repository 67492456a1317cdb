"""The committed stubs say on the wire what the kubelet says, and are what our .proto files give."""

from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from enforcer.dra.stubs import dra_v1_pb2, health_v1_pb2, podresources_v1_pb2, registration_v1_pb2

ROOT = Path(__file__).parents[4]
FILES: dict[str, FileDescriptor] = {
    "dra_v1": dra_v1_pb2.DESCRIPTOR,
    "health_v1": health_v1_pb2.DESCRIPTOR,
    "podresources_v1": podresources_v1_pb2.DESCRIPTOR,
    "registration_v1": registration_v1_pb2.DESCRIPTOR,
}
PACKAGES = {
    "dra_v1": "k8s.io.kubelet.pkg.apis.dra.v1",
    "health_v1": "v1",
    "podresources_v1": "v1",
    "registration_v1": "pluginregistration",
}
WIRE = {
    "dra_v1": {
        "Claim": {"namespace": 1, "uid": 2, "name": 3},
        "Device": {"request_names": 1, "pool_name": 2, "device_name": 3, "cdi_device_ids": 4, "share_id": 5},
        "NodePrepareResourcesRequest": {"claims": 1},
        "NodePrepareResourcesResponse": {"claims": 1},
        "NodePrepareResourceResponse": {"devices": 1, "error": 2},
        "NodeUnprepareResourcesRequest": {"claims": 1},
        "NodeUnprepareResourcesResponse": {"claims": 1},
        "NodeUnprepareResourceResponse": {"error": 1},
    },
    "registration_v1": {
        "InfoRequest": {},
        "PluginInfo": {"type": 1, "name": 2, "endpoint": 3, "supported_versions": 4},
        "RegistrationStatus": {"plugin_registered": 1, "error": 2},
        "RegistrationStatusResponse": {},
    },
    "health_v1": {
        "NodeWatchResourcesRequest": {},
        "DeviceIdentifier": {"pool_name": 1, "device_name": 2},
        "DeviceHealth": {
            "device": 1,
            "health": 2,
            "last_updated_time": 3,
            "health_check_timeout_seconds": 4,
            "message": 5,
        },
        "NodeWatchResourcesResponse": {"devices": 1},
    },
    "podresources_v1": {
        "AllocatableResourcesRequest": {},
        "AllocatableResourcesResponse": {"devices": 1},
        "ContainerDevices": {"resource_name": 1, "device_ids": 2},
    },
}
"""Names and numbers of k8s.io/kubelet v0.37.1."""


@pytest.mark.parametrize("name", FILES)
def test_the_wire_is_the_kubelets(name: str) -> None:
    file = FILES[name]
    assert file.package == PACKAGES[name]
    messages: dict[str, Descriptor] = dict(file.message_types_by_name)
    assert {key: {each.name: each.number for each in one.fields} for key, one in messages.items()} == WIRE[name]


@pytest.mark.parametrize("name", FILES)
def test_the_stubs_are_those_of_the_proto_files(name: str, tmp_path: Path) -> None:
    source, out = f"enforcer/dra/stubs/{name}.proto", tmp_path / "out"
    assert protoc.main(["protoc", f"-I{ROOT}", f"--descriptor_set_out={out}", str(ROOT / source)]) == 0
    found = FileDescriptorSet.FromString(out.read_bytes()).file[0]
    for message in found.message_type:
        for each in [*message.field, *(field for nested in message.nested_type for field in nested.field)]:
            each.ClearField("json_name")  # protoc adds it; in the stubs it is worked out
    assert found.SerializeToString(deterministic=True) == FILES[name].serialized_pb, "run: make protos"
