"""Who gets in, and who is put out again."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.guest import Guest, title
from tests.dashboard.people import new_client, new_code
from tests.support.api import Api
from tests.support.command import run_retoma
from tests.support.service import RunningService, start_service

pytestmark = pytest.mark.xdist_group("dashboard")
ENDLESS = {"RETOMA_SCRIPTED_TOKEN_MS": "30", "RETOMA_SCRIPTED_TOKENS": "100000"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with start_service(tmp_path_factory.mktemp("sign-in") / "data", env=ENDLESS) as running:
        yield running


@pytest.fixture(scope="module")
def api(service: RunningService) -> Api:
    return Api(service)


def sign_in(page: Page, secret: str) -> None:
    page.get_by_label("Pairing code or token").fill(secret)
    page.keyboard.press("Enter")


def put_out(page: Page, sentence: str) -> None:
    """The form is back, says why, and nothing is left of what was shown, nor of the token."""
    expect(page.locator("#sign-in-error")).to_contain_text(sentence)
    expect(page.locator("#sign-in")).to_be_visible()
    expect(page.locator("#top")).to_be_hidden()
    assert page.locator("#view").inner_html() == ""
    assert page.evaluate("[sessionStorage.getItem('retoma.token'), localStorage.length]") == [None, 0]


def test_a_token_opens_the_page_that_was_asked_for(service: RunningService, guest: Guest) -> None:
    page = guest.open(service, "#/store")
    expect(page.get_by_label("Pairing code or token")).to_be_focused()
    assert page.locator("#view").inner_html() == ""
    sign_in(page, "no such token")
    put_out(page, "neither a pairing code nor a token")
    sign_in(page, "rt_wrong")
    put_out(page, "This token is unknown or has been revoked. Sign in again.")
    sign_in(page, new_client(service, "responses:write", "tasks:read")[1])
    put_out(page, "needs the scope admin")
    sign_in(page, f"  {service.token}\n")
    title(page, "Store")
    expect(page.locator("#sign-in")).to_be_hidden()
    page.reload()
    title(page, "Store")


def test_a_code_in_the_address_signs_in_once_and_is_gone_from_the_address(
    service: RunningService, guest: Guest
) -> None:
    printed = run_retoma(
        *("clients", "pair", "--json", "--scopes", "admin", "--url", service.url, "--data-dir", service.data_dir)
    )
    assert printed.status == 0, printed.err
    made = json.loads(printed.out)
    assert made["url"] == f"{service.url}/#pair={made['code']}"
    page = guest.open(service, f"#pair={made['code']}")
    title(page, "Overview")
    assert page.url == f"{service.url}/"
    assert page.evaluate("history.length") <= 2
    page.locator("#nav").get_by_role("link", name="Clients").click()
    expect(page.get_by_role("row").filter(has_text="this browser")).to_contain_text("Operator’s page")

    again = guest.open(service, f"#pair={made['code']}")
    put_out(again, "The code was not taken")
    assert again.url == f"{service.url}/"
    typed = new_code(service, "admin").lower()
    sign_in(again, f"{typed[:4]} {typed[4:]}")
    title(again, "Overview")


def test_a_client_that_is_revoked_is_put_out_in_the_middle_of_a_text(
    service: RunningService, api: Api, guest: Guest
) -> None:
    client, token = new_client(service, "admin")
    task = api.create()
    page = guest.open(service, f"#/tasks/{task}", token)
    expect(page.locator("#output")).to_contain_text(" ")
    assert api.http.delete(f"/v1/clients/{client}").status_code == 200
    put_out(page, "This token is unknown or has been revoked. Sign in again.")
    sign_in(page, service.token)
    title(page, f"resp…{task[-8:]}")
    api.cancel(task)
    expect(page.locator(".titled .state").first).to_have_text("cancelled")


def test_the_page_revokes_clients_itself_included(service: RunningService, guest: Guest) -> None:
    (client, token), (other, _) = new_client(service, "admin"), new_client(service, "responses:read")
    page = guest.open(service, "#/clients", token)
    page.locator(f"#revoke-{other}").click()
    page.get_by_role("button", name="Revoke", exact=True).last.click()
    expect(page.locator("#notice")).to_have_text("The client “a phone” is revoked.")
    expect(page.locator(f"#{other}")).to_contain_text("revoked")
    page.locator(f"#revoke-{client}").click()
    page.locator("#confirm-yes").click()
    put_out(page, "revoked")


def test_another_tab_needs_no_second_sign_in_and_signing_out_is_for_all(service: RunningService, guest: Guest) -> None:
    first = guest.open(service, "")
    sign_in(first, service.token)
    title(first, "Overview")
    second = guest.another(first.context)
    second.goto(f"{service.url}/#/models")
    title(second, "Models")
    stranger = guest.open(service, "")  # another profile
    expect(stranger.locator("#sign-in")).to_be_visible()
    first.get_by_role("button", name="Sign out").click()
    expect(first.locator("#sign-in")).to_be_visible()
    put_out(second, "Signed out in another tab.")
    third = guest.another(first.context)
    third.goto(service.url)
    expect(third.locator("#sign-in")).to_be_visible()
