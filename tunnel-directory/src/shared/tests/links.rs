//! Nodes whose links to others are lost.

use super::{world::World, *};

/// So many nodes that are ready, of which each has links to all others.
fn linked(count: usize) -> World {
    let mut world = World::new();
    for number in 0..count {
        world.add(&format!("n{number}"), number as u64 + 1);
    }
    world.run(Duration::from_secs(1));
    for number in 0..count {
        set_links(&mut world, number, count - 1);
    }
    world.run(Duration::from_secs(1));
    world
}

fn set_links(world: &mut World, number: usize, open: usize) {
    let now = world.now();
    world.nodes[number].node.on_links(open, now);
}

fn isolated(world: &World) -> Vec<bool> {
    let nodes = world.nodes.iter();
    nodes.map(|running| running.node.is_isolated()).collect()
}

/// The links that the keys show, as a node knows them.
fn shown(world: &World, by: usize) -> Vec<Option<u64>> {
    let nodes = world.nodes[by].node.nodes().into_iter();
    nodes.map(|(_, _, record)| record.links).collect()
}

#[test]
fn a_node_that_reaches_no_other_is_isolated_until_it_does() {
    let mut world = linked(3);
    assert_eq!(shown(&world, 2), [Some(2); 3]);
    set_links(&mut world, 0, 0);
    world.run(Duration::from_secs(10));
    assert_eq!(shown(&world, 2), [Some(0), Some(2), Some(2)]);
    assert_eq!(isolated(&world), [false; 3], "the others may be dead");
    world.run(Duration::from_secs(20));
    assert_eq!(isolated(&world), [true, false, false]);
    let left = world.nodes[0].node.standing().reason_to_leave();
    assert_eq!(left, Some(crate::MoveReason::Links));
    set_links(&mut world, 0, 1);
    assert_eq!(isolated(&world), [false; 3]);
    world.run(Duration::from_secs(1));
    assert_eq!(shown(&world, 2), [Some(1), Some(2), Some(2)]);
}

/// Neither is better than the other.
#[test]
fn two_nodes_that_do_not_reach_each_other_are_not_isolated() {
    let mut world = linked(2);
    for number in 0..2 {
        set_links(&mut world, number, 0);
    }
    world.run(Duration::from_secs(60));
    assert_eq!(isolated(&world), [false; 2]);
}
