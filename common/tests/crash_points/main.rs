//! Death at every point: each step of the queue is taken again and again, and dies before its first, second, third, ...
//! store to shared memory. Each time another participant goes on, the launcher takes back what the dead one had, every
//! invariant is checked, and the run is finished: each batch trained once, every slot free, both sides told so.
//!
//! The algorithm's folder is compiled anew over atomics that count the stores ([`sync`]); death makes all later stores
//! of the dying step void, as a kill does.
#![allow(unsafe_code, dead_code, unused_imports, unreachable_pub, reason = "compiles the algorithm's folder anew")]
#![allow(clippy::missing_safety_doc, reason = "the marker trait means nothing here")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking and shows its figures")]

#[path = "../../src/queue/ring/mod.rs"]
mod ring;
mod sync;
mod world;

mod ids {
    pub(crate) use common::ids::{BatchId, SlotIndex, Step};
}

/// What the algorithm's structs promise about living in shared memory means nothing here.
mod shm {
    pub(crate) unsafe trait Shared {}
}

use world::{Action, Death, Scene, World};

/// Rules, and what was done before.
fn scenes() -> Vec<Scene> {
    let mut scenes = Vec::new();
    for strict in [false, true] {
        for latch in [false, true] {
            for published in 0..=3 {
                scenes.push(Scene { strict, latch, published });
            }
        }
    }
    scenes
}

#[test]
fn death_before_any_store_of_any_step_loses_nothing() {
    let (mut points, mut inside) = (0, 0);
    for scene in scenes() {
        for action in Action::ALL {
            for fuse in 0.. {
                let world = World::new(scene);
                match world.die_at(action, fuse) {
                    None => break,
                    Some(Death { locked }) => {
                        points += 1;
                        inside += u32::from(locked);
                    }
                }
                world.go_on(action);
                world.finish();
            }
        }
    }
    println!("{points} points of death, {inside} of them inside the lock");
    assert!(inside > 2000 && points - inside > 150, "{points} points, {inside} inside the lock");
}

/// The heir of the lock may die while it repairs.
#[test]
fn death_during_a_repair_loses_nothing() {
    let mut points = 0;
    for scene in
        [Scene { strict: false, latch: true, published: 2 }, Scene { strict: true, latch: false, published: 2 }]
    {
        for action in Action::ALL.into_iter().filter(|action| !action.is_launchers()) {
            for fuse in 0.. {
                let first = World::new(scene);
                match first.die_at(action, fuse) {
                    None => break,
                    Some(Death { locked: false }) => continue,
                    Some(_) => {}
                }
                for second in 0.. {
                    let world = World::new(scene);
                    world.die_at(action, fuse);
                    if world.die_repairing(second).is_none() {
                        break;
                    }
                    points += 1;
                    world.go_on(action);
                    world.finish();
                }
            }
        }
    }
    println!("{points} points of a second death");
    assert!(points > 5000, "{points}");
}
