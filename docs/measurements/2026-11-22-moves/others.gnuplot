set terminal pngcairo size 1100,888 font 'sans,10'
set output 'others.png'
set title 'other collectives of 64 MiB'
set logscale x
set xrange [0.982322:427.45]
set yrange [-0.7:31.7]
set xlabel 'ms, less is better'
set grid xtics
set key off
set style fill solid 0.8
plot 'others.dat' using 3:0:2:3:($0-0.35):($0+0.35):ytic(1) with boxxyerrorbars lc rgb '#4477aa', \
     '' using 3:0:4 with labels left offset 0.5,0
