# Of the lines of the tests: the medians under their names, and what has none.
def of($vmm; $name): [.[] | select(.machine.vmm == $vmm) | .figures[] | select(.name == $name) | .median | values] | .[0];
def ratio($a; $b): if $a == null or $b == null then null else $a / $b end;
if length == 0 then error("no figures") else . end
| . as $runs
| "cloud-hypervisor" as $ch
| ({ gap_vs_ch_own_512m: of($ch; "gap_vs_ch_own_512m"),
     gap_vs_ch_own_2g: of($ch; "gap_vs_ch_own_2g"),
     stop_cont_vs_qemu: ratio(of($ch; "stop_cont_ms_512m"); of("qemu"; "stop_cont_ms_512m")),
     wake_vs_ch_restore_512m: of($ch; "wake_vs_ch_restore_512m"),
     wake_vs_ch_restore_2g: of($ch; "wake_vs_ch_restore_2g"),
     start_vs_boot: of($ch; "start_vs_boot"),
     differing_pages: of($ch; "differing_pages") }) as $keys
| $keys + { commit: $commit, not_measured: [$keys | to_entries[] | select(.value == null) | .key], runs: $runs }
