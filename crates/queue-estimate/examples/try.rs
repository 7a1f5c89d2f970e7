use queue_estimate::quality::Quality;
use queue_estimate::replay::{self, generate, schedule, swf};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n: usize = args.get(2).and_then(|n| n.parse().ok()).unwrap_or(usize::MAX);
    let kinds = [("stationary", generate::Kind::Stationary), ("light", generate::Kind::Light), ("overload", generate::Kind::Overload), ("bursts", generate::Kind::Bursts), ("changing", generate::Kind::Changing)];
    let mut trace = if let Some((_, kind)) = kinds.iter().find(|k| k.0 == args[1]) {
        let mut t = generate::generate(*kind, n.min(1_000_000), 1); schedule::easy(&mut t); t
    } else {
        let mut t = swf::read(&std::fs::read(&args[1]).unwrap(), None).unwrap();
        t.jobs.truncate(n);
        if args.get(3).is_some_and(|a| a == "easy") { schedule::easy(&mut t); }
        t
    };
    trace.jobs.sort_by_key(|j| j.eligible);
    let t0 = std::time::Instant::now();
    let rows = replay::replay(&trace, 3600*3, |_| true);
    let secs = t0.elapsed().as_secs_f64();
    let mut waits: Vec<i64> = trace.jobs.iter().filter_map(|j| Some(j.left? - j.eligible)).filter(|w| *w>30).collect(); waits.sort();
    println!("{} jobs {} rows {:.1}s, waited>30: {} median {:?} p90 {:?}", trace.jobs.len(), rows.len(), secs, waits.len(), waits.get(waits.len()/2), waits.get(waits.len()*9/10));
    let out: Vec<_> = rows.iter().filter_map(|r| r.outcome()).collect();
    let warm = if args[1]=="overload" {0} else {out.len()/10};
    for later in [false,true] {
        let o: Vec<_> = out[warm..].iter().filter(|o| o.later==later).copied().collect();
        let q = Quality::of(o.iter());
        println!("{} n {} wait {:?} | P50 {:.1} P90 {:.1} | err {:?} plan {:?} ({:.0}%) hist {:?} ({:.0}%) | pin {:.3} {:.3} | sharp {:.2}", if later {"later"} else {"first"}, q.n, q.median_wait, q.covered_p50.unwrap_or(-1.), q.covered_p90.unwrap_or(-1.), q.median_error, q.plan_median_error, q.plan_covered.unwrap_or(-1.), q.history_median_error, q.history_covered_p90.unwrap_or(-1.), q.pinball_p50.unwrap_or(-1.), q.pinball_p90.unwrap_or(-1.), q.sharpness.unwrap_or(-1.));
        for (name, q) in Quality::classes(o.iter()) { print!("  {name}: n {} P50 {:.0} P90 {:.0};", q.n, q.covered_p50.unwrap_or(-1.), q.covered_p90.unwrap_or(-1.)); }
        let b = Quality::blocks(o.iter()); 
        println!("\n  blocks {:?} bad {}/{}", b.iter().map(|x| x.round() as i64).collect::<Vec<_>>(), b.iter().filter(|x| **x<80.).count(), b.len());
    }
}
