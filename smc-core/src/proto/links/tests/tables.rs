use super::super::add_link_client::ClientStage;
use super::super::add_link_server::ServerStage;
use super::*;

#[test]
fn link_states() {
    let expected = "\
state      | open       | confirm | deactivate | clear
UNUSED     | ACTIVATING | -       | -          | -
ACTIVATING | -          | ACTIVE  | INACTIVE   | UNUSED
ACTIVE     | -          | -       | INACTIVE   | UNUSED
INACTIVE   | -          | -       | -          | UNUSED
";
    assert_eq!(LinkState::table(), expected);
}

#[test]
fn stages_of_an_offer() {
    let expected = "\
state      | opened  | mapped  | accepted   | connected_v1 | connected_v2 | exchanged  | confirmed
OPENING    | MAPPING | -       | -          | -            | -            | -          | -
MAPPING    | -       | OFFERED | -          | -            | -            | -          | -
OFFERED    | -       | -       | CONNECTING | -            | -            | -          | -
CONNECTING | -       | -       | -          | EXCHANGING   | CONFIRMING   | -          | -
EXCHANGING | -       | -       | -          | -            | -            | CONFIRMING | -
CONFIRMING | -       | -       | -          | -            | -            | -          | CONFIRMED
CONFIRMED  | -       | -       | -          | -            | -            | -          | -
";
    assert_eq!(ServerStage::table(), expected);
}

#[test]
fn stages_of_a_join() {
    let expected = "\
state      | opened     | connected | mapped_v1  | mapped_v2  | exchanged  | confirmed
OPENING    | CONNECTING | -         | -          | -          | -          | -
CONNECTING | -          | MAPPING   | -          | -          | -          | -
MAPPING    | -          | -         | EXCHANGING | CONFIRMING | -          | -
EXCHANGING | -          | -         | -          | -          | CONFIRMING | -
CONFIRMING | -          | -         | -          | -          | -          | CONFIRMED
CONFIRMED  | -          | -         | -          | -          | -          | -
";
    assert_eq!(ClientStage::table(), expected);
}
