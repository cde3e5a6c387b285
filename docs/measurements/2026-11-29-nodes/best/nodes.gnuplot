set terminal pngcairo size 1100,768 font 'sans,10'
set output 'nodes.png'
set title 'between nodes'
set logscale x
set xrange [10.6808:921.13]
set yrange [-0.7:26.7]
set xlabel 'ms, less is better'
set grid xtics
set key off
set style fill solid 0.8
plot 'nodes.dat' using 3:0:2:3:($0-0.35):($0+0.35):ytic(1) with boxxyerrorbars lc rgb '#4477aa', \
     '' using 3:0:4 with labels left offset 0.5,0
