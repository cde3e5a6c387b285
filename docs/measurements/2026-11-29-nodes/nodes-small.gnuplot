set terminal pngcairo size 1100,840 font 'sans,10'
set output 'nodes-small.png'
set title 'between nodes, small'
set logscale x
set xrange [2.68767:27540.6]
set yrange [-0.7:29.7]
set xlabel 'µs, less is better'
set grid xtics
set key off
set style fill solid 0.8
plot 'nodes-small.dat' using 3:0:2:3:($0-0.35):($0+0.35):ytic(1) with boxxyerrorbars lc rgb '#4477aa', \
     '' using 3:0:4 with labels left offset 0.5,0
