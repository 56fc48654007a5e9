"""What certificates say about their holders."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509

from coordinator.core.errors import BadRequest, Forbidden, SetupError
from coordinator.security.authority import issue, make_authority
from coordinator.security.plain import require_encrypted
from coordinator.security.roles import METHODS, Holder, Role, holder_of, require, uri_of


@pytest.mark.parametrize("role", list(Role))
def test_a_uri_and_an_organizational_unit_say_the_same(role: Role) -> None:
    holder = Holder(role, "node-7.rack")
    assert holder_of([uri_of(holder)], [], "whatever") == holder
    assert holder_of([], [f"allstop-{role}"], "node-7.rack") == holder
    assert holder_of(["https://x/", uri_of(holder)], ["Sales"], "x") == holder


@pytest.mark.parametrize(
    "uris",
    [
        (),
        ("allstop://root/x",),
        ("allstop://shim/",),
        ("allstop://shim/a/b",),
        ("allstop:shim",),
        ("https://shim/n0",),
        ("allstop://shim/n0", "allstop://operator/ada"),
        ("allstop://shim/n0", "allstop://shim/n1"),
    ],
)
def test_none_or_several_are_refused(uris: tuple[str, ...]) -> None:
    with pytest.raises(Forbidden):
        holder_of(uris, [], "somebody")


def test_a_uri_wins_over_the_subject() -> None:
    viewer = Holder(Role.VIEWER, "eve")
    assert holder_of([uri_of(viewer)], ["allstop-operator"], "eve") == viewer


def test_a_method_that_is_not_named_is_nobodys() -> None:
    for role in Role:
        with pytest.raises(Forbidden):
            require(Holder(role, "x"), "/allstop.v1.Operator/DropEverything")


def test_every_method_of_every_service_is_named() -> None:
    from allstop.v1 import carrier_pb2, operator_pb2, partner_pb2, shim_pb2

    services = (
        operator_pb2.DESCRIPTOR.services_by_name["Operator"],
        shim_pb2.DESCRIPTOR.services_by_name["ShimLink"],
        carrier_pb2.DESCRIPTOR.services_by_name["CarrierLink"],
        partner_pb2.DESCRIPTOR.services_by_name["Partner"],
    )
    methods = {f"/{each.full_name}/{one.name}" for each in services for one in each.methods}
    assert methods == METHODS.keys()


def test_what_is_issued_says_who_it_is_and_nobody_else_reads_the_keys(tmp_path: Path) -> None:
    made = make_authority(tmp_path / "ca")
    with pytest.raises(BadRequest):
        make_authority(tmp_path / "ca")
    shim = Holder(Role.SHIM, "n0")
    one = issue(tmp_path / "ca", shim, (), into=tmp_path / "n0")
    for key in (made.key, one.key):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700
    certificate = x509.load_pem_x509_certificate(one.certificate.read_bytes())
    ca = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    certificate.verify_directly_issued_by(ca)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["allstop://shim/n0"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    # As a partner it serves too, and can pass for nobody but its node.
    assert [each._name for each in usage] == ["clientAuth", "serverAuth"]
    assert names.get_values_for_type(x509.DNSName) == ["n0"]
    operator = issue(tmp_path / "ca", Holder(Role.OPERATOR, "ada"), (), into=tmp_path / "ada")
    other = x509.load_pem_x509_certificate(operator.certificate.read_bytes())
    usage = other.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [each._name for each in usage] == ["clientAuth"]
    assert certificate.not_valid_after_utc <= ca.not_valid_after_utc


def test_an_authority_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"ca\.pem"):
        issue(tmp_path, Holder(Role.SHIM, "n0"), (), into=tmp_path)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/x"])
def test_this_machine_may_speak_plainly_to_itself(address: str) -> None:
    require_encrypted([address], "dialling", insecure=False)


@pytest.mark.parametrize("address", ["10.0.0.1:1", "0.0.0.0:1", "[::]:1", "http://10.0.0.1:2379"])
def test_over_the_network_only_if_somebody_says_so(address: str) -> None:
    require_encrypted([address], "dialling", insecure=True)
    with pytest.raises(BadRequest, match="without TLS"):
        require_encrypted([address], "dialling", insecure=False)
