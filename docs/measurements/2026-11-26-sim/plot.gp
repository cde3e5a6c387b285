# gnuplot plot.gp, here: sim.csv has lines of hvt-sim --csv, each behind the number of nodes.
set datafile separator ","
set terminal png size 900,600
set output "sim.png"
set logscale xy
set key outside bottom center
set grid
set xlabel "nodes, 8 ranks on each"
set ylabel "ms of simulated time; MB"
plot "< grep 'init: the last' sim.csv" using 1:3 with linespoints title "init", \
     "< grep 'first step: the last' sim.csv" using 1:3 with linespoints title "first step of 161 tensors", \
     "< grep 'replayed step: the last' sim.csv" using 1:3 with linespoints title "replayed step", \
     "< grep 'first step: bytes' sim.csv" using 1:($3/1e6) with linespoints title "first step: MB of control messages, hop by hop"
